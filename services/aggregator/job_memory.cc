// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/job_memory.h"

#include <cstring>
#include <utility>

#include "libs/base/check.h"

namespace talweg::aggregator {

SlotPool& JobMemory::PoolOf(const view::MemberIdentity& member, Epoch epoch) {
  const transport::PeerIdentity writer = {
      .job = job_, .epoch = epoch, .node = member.node, .incarnation = member.incarnation};
  return slots_.try_emplace(member, transport_, source_, limits_, writer).first->second;
}

void JobMemory::Allocate(const aggregation::AllocateMemory& effect, Epoch epoch) {
  SlotPool& pool = effect.member ? PoolOf(*effect.member, epoch) : results_;
  SlotMemory memory = pool.Allocate(effect.bytes);
  memory_.emplace(effect.id.value(), memory);
  // Nobody else shares memory that has not come, so it does not come after this object is gone.
  memory.WhenMapped([this, effect](const absl::Status& status) {
    const auto found = memory_.find(effect.id.value());
    if (found == memory_.end()) return;  // Released. Its neighbours in the mapping are not.
    if (!status.ok()) return on_allocated_(effect, status);
    on_allocated_(effect, found->second.ref());
  });
}

void JobMemory::Release(aggregation::AllocationId id) { memory_.erase(id.value()); }

SlotMemory JobMemory::Of(aggregation::AllocationId id) const {
  if (id == aggregation::AllocationId{0}) return {};
  const auto found = memory_.find(id.value());
  TALWEG_CHECK(found != memory_.end() && found->second.is_mapped());
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
  for (const auto& [id, memory] : memory_) bytes += memory.size();
  return bytes;
}

}  // namespace talweg::aggregator
