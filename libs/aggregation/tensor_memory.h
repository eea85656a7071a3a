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
// the budgets, and the use of each allocation. Only this class writes the tensors' memory fields.
//
// A pure class: it asks for memory by effects. One owner thread. The other jobs of that thread
// share `budget`. The constructor's arguments outlive it.
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

  // Sets how much the job may place from now on; what is placed already stays. The other jobs of
  // quota.tenant share `tenant`; null: the job has no tenant.
  void SetQuota(const view::JobQuota& quota, std::shared_ptr<PlaceBudget> tenant);

  // Cuts an agreed tensor as the present view does, and reserves memory for it. Returns "", or why
  // there is no room; then nothing is reserved.
  std::string Place(AggregatorTensor& tensor, Effects& out);
  // Allocates the member's slots, of the size that the placed tensor needs. The member's connection
  // is of the present epoch.
  void EnsureSlots(AggregatorTensor& tensor, MemberIndex member, Effects& out);

  // An allocation has come. A member's slots lie at `ref`.
  static void OnAllocated(AggregatorTensor& tensor, const Use& use, wire::RemoteRef ref);

  // In a new view: releases the slots of members outside it; all, if this aggregator is outside.
  void ReleaseDeparted(AggregatorTensor& tensor, Effects& out);
  // Releases the slots of members that have not declared the tensor; everything, if none has, or if
  // the tensor has failed.
  void ReleaseUnused(AggregatorTensor& tensor, Effects& out);
  // Releases everything; the tensor is to be placed again.
  void ReleaseAll(AggregatorTensor& tensor, Effects& out);

  // Returns nullptr if the allocation was released.
  const Use* Find(AllocationId id) const;
  const view::JobQuota& quota() const { return quota_; }
  const PlaceBudget& place() const { return place_; }

 private:
  // Returns why the rules have no room for one more tensor, or "".
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
  PlaceBudget place_;                    // This job's budget.
  std::shared_ptr<PlaceBudget> tenant_;  // Null: the job has no tenant.
  uint64_t last_allocation_ = 0;
  std::map<AllocationId, Use> uses_;
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_TENSOR_MEMORY_H_
