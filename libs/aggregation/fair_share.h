// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_FAIR_SHARE_H_
#define TALWEG_LIBS_AGGREGATION_FAIR_SHARE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "libs/base/bytes.h"
#include "libs/base/ids.h"
#include "libs/view/job_quota.h"

namespace talweg::aggregation {

// Whose piece of work is next where the pieces of several jobs wait: start-time fair queueing over
// three levels, priorities, tenants, jobs (docs/quotas.md).
//
// At each level everybody has a time of its own, which goes on by cost / weight. The one whose time
// is earliest is next. Who has had no work waiting is set to the time of whoever was last next, so
// that idleness is no credit. Work that is done in another order, as what peers send, moves a time
// on too, but by no more than kAheadBytesMax before that time.
//
// A pure class. Equal calls give equal answers. One owner thread.
class FairShare {
 public:
  FairShare() = default;
  FairShare(const FairShare&) = delete;
  FairShare& operator=(const FairShare&) = delete;

  // What a piece costs besides its bytes.
  static constexpr uint64_t kPieceBytes = 4 * kKiB;
  // As if a job had had so much more than others: no more is held against it.
  static constexpr uint64_t kAheadBytesMax = 64 * kMiB;
  // How many times a priority's weight is that of the next lower one.
  static constexpr uint64_t kPriorityRatio = 16;

  // A job comes, or its rules change.
  void Set(JobId job, const view::JobQuota& quota);
  void Remove(JobId job);

  // Whether pieces of the job wait. Unknown jobs are ignored.
  void SetWaits(JobId job, bool waits);
  // The job whose piece is next; nullopt: none waits.
  std::optional<JobId> Next() const;
  // The next piece is done now: called before anything that it brings is charged.
  void Serve(JobId job, uint64_t bytes) { Count(job, bytes, true); }
  // Something was done for the job that did not wait here.
  void Charge(JobId job, uint64_t bytes) { Count(job, bytes, false); }

  // All that was counted for a job.
  uint64_t ServedBytes(JobId job) const;

 private:
  // A member of a level.
  struct Flow {
    uint64_t time = 0;
    uint64_t weight = 1;
    size_t waits = 0;  // Jobs in it that have work waiting.

    void Spend(uint64_t cost) { time += cost / weight + 1; }
  };
  // Tenants by name. A job without one stands by its id.
  using TenantKey = std::pair<std::string, JobId>;
  struct Tenant {
    Flow flow;
    uint64_t now = 0;  // The time of its job that was last next.
    std::map<JobId, Flow> jobs;
  };
  struct Level {
    Flow flow;
    uint64_t now = 0;
    std::map<TenantKey, Tenant> tenants;
  };
  struct Place {
    Level* level = nullptr;
    TenantKey tenant_key;
    Tenant* tenant = nullptr;
    Flow* flow = nullptr;
    uint64_t served_bytes = 0;
  };

  void Count(JobId job, uint64_t bytes, bool was_next);
  // Work of the flow begins to wait, or ends.
  static void SetFlowWaits(Flow& flow, uint64_t now, bool waits);
  static void Bound(Flow& flow, uint64_t now);

  std::map<JobId, Place> places_;
  uint64_t now_ = 0;
  // By priority, the lowest first.
  std::array<Level, 3> levels_ = {Level{.flow = {.weight = 1}},
                                  Level{.flow = {.weight = kPriorityRatio}},
                                  Level{.flow = {.weight = kPriorityRatio * kPriorityRatio}}};
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_FAIR_SHARE_H_
