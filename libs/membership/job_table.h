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

// The jobs that are open, and for a while those that are over.
class JobTable {
 public:
  JobTable(const Config& config, const Snapshot& snapshot, Epoch epoch_start, int64_t now_ns);

  const std::map<JobId, LiveJob>& all() const { return jobs_; }
  std::map<JobId, LiveJob>& all() { return jobs_; }

  // Null: no such job is known.
  LiveJob* Find(JobId id);
  const LiveJob* Find(JobId id) const;
  // The job of that name that is not over; null: there is none.
  LiveJob* FindOpen(const std::string& name);
  size_t OpenCount() const;

  // A job without members, as its first one asks for it.
  LiveJob& Add(JobId id, const JoinRequest& request, int64_t now_ns);
  // What is answered to a member that has joined before, alive or not. nullopt: it has not.
  std::optional<JoinAnswer> JoinedBefore(const JoinRequest& request) const;

  // Forgets jobs that have been over for long enough, or are too many.
  void Collect(Turn& turn);

 private:
  const int64_t history_ns_;
  const size_t history_jobs_max_;
  std::map<JobId, LiveJob> jobs_;
};

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_JOB_TABLE_H_
