// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/job_memory.h"

#include <cstring>
#include <utility>

#include "libs/base/check.h"
#include "libs/status/status.h"

namespace talweg::aggregator {

SlotPool& JobMemory::PoolOf(const view::MemberIdentity& member, Epoch epoch) {
  const transport::PeerIdentity writer = {
      .job = job_, .epoch = epoch, .node = member.node, .incarnation = member.incarnation};
  return slots_.try_emplace(member, transport_, source_, limits_, writer).first->second;
}

absl::StatusOr<wire::RemoteRef> JobMemory::Allocate(const aggregation::AllocateMemory& effect,
                                                    Epoch epoch) {
  SlotPool& pool = effect.member ? PoolOf(*effect.member, epoch) : results_;
  TALWEG_ASSIGN_OR_RETURN(SlotMemory memory, pool.Allocate(effect.bytes));
  const wire::RemoteRef ref = memory.ref();
  memory_.emplace(effect.id.value(), std::move(memory));
  return ref;
}

void JobMemory::Release(aggregation::AllocationId id) { memory_.erase(id.value()); }

SlotMemory JobMemory::Of(aggregation::AllocationId id) const {
  if (id == aggregation::AllocationId{0}) return {};
  const auto found = memory_.find(id.value());
  TALWEG_CHECK(found != memory_.end());
  return found->second;
}

void JobMemory::Store(const aggregation::StoreInline& effect,
                      std::span<const std::byte> bytes) const {
  TALWEG_CHECK(bytes.size() == effect.travel_bytes);
  const SlotMemory slots = Of(effect.slots);
  std::memcpy(slots.bytes().subspan(effect.offset_bytes, bytes.size()).data(), bytes.data(),
              bytes.size());
}

void JobMemory::ForgetPoolsBut(const view::View& view) {
  std::erase_if(slots_, [&view](const auto& pool) { return !view.IndexOf(pool.first); });
}

uint64_t JobMemory::held_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [id, memory] : memory_) bytes += memory.bytes().size();
  return bytes;
}

}  // namespace talweg::aggregator
