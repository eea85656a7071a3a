// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_JOB_MEMORY_H_
#define TALWEG_SERVICES_AGGREGATOR_JOB_MEMORY_H_

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>

#include "libs/aggregation/effects.h"
#include "libs/base/ids.h"
#include "libs/transport/transport.h"
#include "libs/view/view.h"
#include "services/aggregator/slot_memory.h"

namespace talweg::aggregator {

// The memory that the core of one job has asked for, by the core's ids. One owner thread.
// `transport` and `source` outlive this object and the memory.
class JobMemory {
 public:
  // Called when memory that is not released has come, or could not.
  using OnAllocated = std::function<void(const aggregation::AllocateMemory& asked,
                                         const absl::StatusOr<wire::RemoteRef>& ref)>;

  JobMemory(JobId job, transport::Transport* transport, MemorySource* source, SlotLimits limits)
      : job_(job),
        transport_(transport),
        source_(source),
        limits_(limits),
        results_(transport, source, limits) {}
  JobMemory(const JobMemory&) = delete;
  JobMemory& operator=(const JobMemory&) = delete;

  // Call it before Allocate.
  void SetOnAllocated(OnAllocated on_allocated) { on_allocated_ = std::move(on_allocated); }
  // Allocates a member's slots from a pool to which the member's key of `epoch` gives access.
  // OnAllocated follows, inside this call or later. RESOURCE_EXHAUSTED: no memory, or the limit of
  // locked memory is reached.
  void Allocate(const aggregation::AllocateMemory& effect, Epoch epoch);
  // Sums and writes that are under way keep the memory.
  void Release(aggregation::AllocationId id);
  // Returns memory that has come and is not released. Invalid if `id` is 0.
  SlotMemory Of(aggregation::AllocationId id) const;
  // Copies a contribution's bytes to its slot.
  void Store(const aggregation::StoreInline& effect, std::span<const std::byte> bytes) const;
  // Forgets the pools of members that are not in the view. They ask for no more memory.
  void ForgetPoolsBut(const view::View& view);

  // With memory that is to come.
  uint64_t held_bytes() const;

 private:
  SlotPool& PoolOf(const view::MemberIdentity& member, Epoch epoch);

  const JobId job_;
  transport::Transport* const transport_;
  MemorySource* const source_;
  const SlotLimits limits_;
  std::map<view::MemberIdentity, SlotPool> slots_;
  SlotPool results_;
  std::unordered_map<uint64_t, SlotMemory> memory_;  // By AllocationId.
  OnAllocated on_allocated_;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_JOB_MEMORY_H_
