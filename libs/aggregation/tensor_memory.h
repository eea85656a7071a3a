// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_TENSOR_MEMORY_H_
#define TALWEG_LIBS_AGGREGATION_TENSOR_MEMORY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "libs/aggregation/aggregator_core_config.h"
#include "libs/aggregation/aggregator_tensor.h"
#include "libs/aggregation/effects.h"
#include "libs/aggregation/memory_budget.h"
#include "libs/aggregation/present_view.h"
#include "libs/view/job_quota.h"
#include "libs/view/view.h"

namespace talweg::aggregation {

// Where a job's contributions and results lie at this aggregator: what each tensor has reserved of
// the budgets, and which allocation is whose. It alone writes the tensors' fields of memory.
//
// A pure class: it asks for memory by effects. One owner thread. `budget` is shared with the other
// jobs of that thread. What it is made of outlives it.
class TensorMemory {
 public:
  // What an allocation is for: a member's contributions, or, without a member, results.
  struct Use {
    TensorKey tensor;
    std::optional<view::MemberIdentity> member;
  };

  TensorMemory(const AggregatorCoreConfig* config, const PresentView* view, MemoryBudget* budget);
  // Gives back what was reserved.
  ~TensorMemory();
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;

  // What the job may place, from now on. `tenant` is shared with the other jobs of quota.tenant;
  // null without one. What is placed stays.
  void SetQuota(const view::JobQuota& quota, std::shared_ptr<PlaceBudget> tenant);

  // Cuts an agreed tensor as the present view does, and reserves what that takes. The text says why
  // there is no room, and nothing is reserved then; "" if there is.
  std::string Place(AggregatorTensor& tensor, Effects& out);
  // The member's slots, as large as the tensor is placed. Its connection is of the present epoch.
  void EnsureSlots(AggregatorTensor& tensor, MemberIndex member, Effects& out);

  // Where an allocation for a member's contributions lies.
  static void OnAllocated(AggregatorTensor& tensor, const Use& use, wire::RemoteRef ref);

  // A new view: the slots of those that are out of it; all, if this aggregator is.
  void ReleaseDeparted(AggregatorTensor& tensor, Effects& out);
  // The slots of members that have not declared the tensor; all, if it is of no use to anybody.
  void ReleaseUnused(AggregatorTensor& tensor, Effects& out);
  // It is to be placed anew.
  void ReleaseAll(AggregatorTensor& tensor, Effects& out);

  // nullptr: it was released.
  const Use* Find(AllocationId id) const;
  const view::JobQuota& quota() const { return quota_; }
  const PlaceBudget& place() const { return place_; }

 private:
  // Why the rules have no room for one more tensor, or "".
  std::string RoomProblem(uint64_t needed_bytes) const;
  AllocationId Allocate(const AggregatorTensor& tensor,
                        const std::optional<view::MemberIdentity>& member, uint64_t bytes,
                        Effects& out);
  void Release(AllocationId id, Effects& out);
  void ReleaseSlots(AggregatorTensor& tensor, const view::MemberIdentity& member, Effects& out);
  void Unreserve(AggregatorTensor& tensor);

  const AggregatorCoreConfig* const config_;
  const PresentView* const view_;
  MemoryBudget* const budget_;
  view::JobQuota quota_;
  PlaceBudget place_;                    // This job's.
  std::shared_ptr<PlaceBudget> tenant_;  // Null: it has none.
  uint64_t last_allocation_ = 0;
  std::map<AllocationId, Use> uses_;
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_TENSOR_MEMORY_H_
