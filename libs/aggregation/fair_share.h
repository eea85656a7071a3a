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

// Chooses whose piece of work is next when pieces of several jobs wait: start-time fair queueing
// over three levels, priorities, tenants and jobs (docs/quotas.md).
//
// At each level every flow has its own time, which advances by cost / weight. The flow with the
// earliest time is next. A flow that had no work waiting is set to the time of the last one that
// was next, so that idleness earns no credit. Work that is done in another order, such as what
// peers send, also advances a flow's time, but never to more than kAheadBytesMax past the time of
// the last one that was next.
//
// A pure class. Equal calls give equal answers. One owner thread.
class FairShare {
 public:
  FairShare() = default;
  FairShare(const FairShare&) = delete;
  FairShare& operator=(const FairShare&) = delete;

  // The cost of a piece besides its bytes.
  static constexpr uint64_t kPieceBytes = 4 * kKiB;
  // The most by which a job counts as ahead of the others.
  static constexpr uint64_t kAheadBytesMax = 64 * kMiB;
  // The weight of a priority, divided by that of the next lower one.
  static constexpr uint64_t kPriorityRatio = 16;

  // A job begins, or its rules change.
  void Set(JobId job, const view::JobQuota& quota);
  void Remove(JobId job);

  // Sets whether pieces of the job wait. Unknown jobs are ignored.
  void SetWaits(JobId job, bool waits);
  // The job whose piece is next; nullopt if none waits.
  std::optional<JobId> Next() const;
  // The job's piece is done now. Call this before charging anything that the piece causes.
  void Serve(JobId job, uint64_t bytes) { Count(job, bytes, true); }
  // Charges work for the job that did not wait here.
  void Charge(JobId job, uint64_t bytes) { Count(job, bytes, false); }

  // How many bytes were counted for a job in all.
  uint64_t ServedBytes(JobId job) const;

 private:
  // One entry of a level: a priority, a tenant or a job.
  struct Flow {
    uint64_t time = 0;
    uint64_t weight = 1;
    size_t waits = 0;  // How many of its jobs have work waiting.

    void Spend(uint64_t cost) { time += cost / weight + 1; }
  };
  // Tenants by name. A job without a tenant counts as its own, by its id.
  using TenantKey = std::pair<std::string, JobId>;
  struct Tenant {
    Flow flow;
    uint64_t now = 0;  // The time of the tenant's job that was last next.
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
  // Work of the flow begins to wait, or none waits any more.
  static void SetFlowWaits(Flow& flow, uint64_t now, bool waits);
  static void Bound(Flow& flow, uint64_t now);

  std::map<JobId, Place> places_;
  uint64_t now_ = 0;
  // By priority, lowest first.
  std::array<Level, 3> levels_ = {Level{.flow = {.weight = 1}},
                                  Level{.flow = {.weight = kPriorityRatio}},
                                  Level{.flow = {.weight = kPriorityRatio * kPriorityRatio}}};
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_FAIR_SHARE_H_
