// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_ADMISSION_H_
#define TALWEG_LIBS_MEMBERSHIP_ADMISSION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libs/base/ids.h"
#include "libs/membership/job_table.h"
#include "libs/membership/live_job.h"
#include "libs/membership/quotas.h"
#include "libs/membership/requests.h"
#include "libs/membership/turn.h"

namespace talweg::membership {

// A node that a rule makes wait. It asks again and again.
struct WaitingJoin {
  std::string job_name;
  std::string tenant;
  std::optional<NodeRank> node;  // nullopt: the first member of its job.
  std::string text;              // What it waits for.
  int64_t since_ns = 0;
  int64_t asked_ns = 0;  // When it last asked.
};

// How much a tenant uses of what its rules limit.
struct TenantUse {
  std::vector<std::string> jobs;  // By id.
  uint64_t members_held = 0;      // Over its jobs: the number of members, but at least min_members.
};

// Decides whom the rules admit, and who waits (docs/quotas.md).
class Admission {
 public:
  // `jobs` outlives this.
  explicit Admission(const JobTable* jobs) : jobs_(jobs) {}

  // Sets the rules. Members that are in stay. Returns the rules before.
  Quotas SetQuotas(Quotas quotas) { return std::exchange(quotas_, std::move(quotas)); }

  Quota QuotaOf(const LiveJob& job) const;
  // What the rules say about every job of the tenant.
  Quota TenantQuota(const std::string& tenant) const { return quotas_.OfTenant(tenant); }
  TenantUse UseOf(const std::string& tenant) const { return UseOf(tenant, std::nullopt); }
  // A forming job with this many members waits for no more.
  uint64_t MembersToBegin(const LiveJob& job) const;

  // Whether the agent may name this tenant for the job.
  Answer CheckTenant(const JoinRequest& request) const;
  // Whether the job may begin. If it must wait, it is put into the line.
  Answer AdmitJob(const JoinRequest& request, Turn& turn);
  // `member_count` includes the member that asks.
  Answer AdmitMember(const LiveJob& job, const JoinRequest& request, uint64_t member_count,
                     Turn& turn);
  // The node was admitted.
  void EndWait(const JoinRequest& request);
  // Removes nodes that have stopped asking from the line.
  void ForgetWaiting(int64_t now_ns);
  const std::vector<WaitingJoin>& waiting() const { return waiting_; }  // Oldest first.

 private:
  TenantUse UseOf(const std::string& tenant, std::optional<JobId> except) const;
  Answer Wait(const JoinRequest& request, std::optional<NodeRank> node, const std::string& tenant,
              std::string text, Turn& turn);
  // The oldest node that waits to begin a job of the tenant, unless it is this request's.
  const WaitingJoin* OlderThan(const JoinRequest& request, const std::string& tenant,
                               int64_t now_ns) const;

  const JobTable* const jobs_;
  Quotas quotas_;
  std::vector<WaitingJoin> waiting_;  // Oldest first.
};

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_ADMISSION_H_
