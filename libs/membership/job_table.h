// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_JOB_TABLE_H_
#define TALWEG_LIBS_MEMBERSHIP_JOB_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "libs/base/ids.h"
#include "libs/membership/live_job.h"
#include "libs/membership/records.h"
#include "libs/membership/requests.h"
#include "libs/membership/turn.h"

namespace talweg::membership {

// The jobs that are open and, for a while, those that are over.
class JobTable {
 public:
  JobTable(const Config& config, const Snapshot& snapshot, Epoch epoch_start, int64_t now_ns);

  const std::map<JobId, LiveJob>& all() const { return jobs_; }
  std::map<JobId, LiveJob>& all() { return jobs_; }

  // These return null if no such job is known.
  LiveJob* Find(JobId id);
  const LiveJob* Find(JobId id) const;
  // Returns the open job of that name, or null.
  LiveJob* FindOpen(const std::string& name);
  // Returns whether the newest job of that name has finished.
  bool HasFinished(const std::string& name) const;
  size_t OpenCount() const;

  // Adds a job without members, as its first member's request describes it.
  LiveJob& Add(JobId id, const JoinRequest& request, int64_t now_ns);
  // The answer to a member that has joined before, alive or not; nullopt if it has not.
  std::optional<JoinAnswer> JoinedBefore(const JoinRequest& request) const;

  // Forgets jobs that are over: those that ended long ago, and the oldest if there are too many.
  void Collect(Turn& turn);

 private:
  const int64_t history_ns_;
  const size_t history_jobs_max_;
  std::map<JobId, LiveJob> jobs_;
};

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_JOB_TABLE_H_
