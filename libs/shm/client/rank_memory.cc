// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/rank_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "libs/shm/client/segment_error.h"

namespace talweg::shm {

RankMemory::~RankMemory() {
  std::free(static_cast<void*>(peers_));
  for (uint32_t i = 0; i < segment_count_; ++i) segments_[i].mapping.Reset();
  std::free(segments_);
}

bool RankMemory::Begin() {
  peers_ = static_cast<PeerPart*>(
      std::calloc(std::max(1u, identity_.local_size), kPartsMax * sizeof(PeerPart)));
  return peers_ != nullptr;
}

Problem RankMemory::AdoptSegment(const SegmentInfo& info) {
  const Descriptor fd = link_.socket().TakeDescriptor();
  if (!fd.valid()) return {RankStatus::kProtocol, "a segment's descriptor is missing"};
  if (const char* wrong = SegmentError(fd.get(), info.bytes); wrong != nullptr) {
    return {RankStatus::kProtocol, wrong};
  }
  const bool writes = info.kind == SegmentKind::kContribution;
  Mapping mapping = Mapping::Map(fd.get(), info.bytes,
                                 writes ? Mapping::Access::kReadWrite : Mapping::Access::kRead);
  if (!mapping.valid()) {
    return {RankStatus::kOutOfMemory,
            "a segment cannot be mapped: see this process's limits of memory (ulimit -v) and of "
            "mappings"};
  }
  // A forked child must not write into this rank's contributions, nor keep them alive longer.
  if (writes) ::madvise(mapping.data(), mapping.bytes(), MADV_DONTFORK);
  if (!Reserve()) return {RankStatus::kOutOfMemory, "no memory for a segment"};
  Keep(info.segment, info.kind, std::move(mapping));
  return {};
}

Problem RankMemory::AdoptPeer(const Peer& peer) {
  const Descriptor fd = link_.socket().TakeDescriptor();
  if (!fd.valid()) return {RankStatus::kProtocol, "the descriptor is missing"};
  if (peers_ == nullptr || peer.local_rank >= identity_.local_size) {
    return {RankStatus::kProtocol, "there is no such rank"};
  }
  if (const char* wrong = SegmentError(fd.get(), peer.bytes); wrong != nullptr) {
    return {RankStatus::kProtocol, wrong};
  }
  const MutexLock lock(state_mutex_);
  const bool writes = (in_place_parts_ >> peer.part & 1) != 0;
  Mapping mapping = Mapping::Map(fd.get(), peer.bytes,
                                 writes ? Mapping::Access::kReadWrite : Mapping::Access::kRead);
  if (!mapping.valid()) {
    return {RankStatus::kOutOfMemory,
            "another rank's memory cannot be mapped: see this process's limits of memory"};
  }
  ::madvise(mapping.data(), mapping.bytes(), MADV_DONTFORK);
  PeerPart& known = peers_[peer.local_rank * kPartsMax + peer.part];
  // An older mapping, of a rank that has left, stays: a thread may be reading it.
  if (!Reserve()) return {RankStatus::kOutOfMemory, "no memory for a segment"};
  known.bytes = peer.bytes;
  known.base.store(mapping.data(), std::memory_order_release);
  Keep(0, SegmentKind::kResult, std::move(mapping));
  return {};
}

bool RankMemory::Reserve() {
  void* grown =
      std::realloc(static_cast<void*>(segments_), (segment_count_ + 1) * sizeof(*segments_));
  if (grown == nullptr) return false;
  segments_ = static_cast<MappedSegment*>(grown);
  return true;
}

void RankMemory::Keep(uint32_t id, SegmentKind kind, Mapping mapping) {
  new (&segments_[segment_count_++]) MappedSegment{id, kind, std::move(mapping)};
}

std::byte* RankMemory::Locate(const Location& location, SegmentKind kind, uint64_t bytes) const {
  for (uint32_t i = 0; i < segment_count_; ++i) {
    const MappedSegment& segment = segments_[i];
    if (segment.id != location.segment) continue;
    const uint64_t segment_bytes = segment.mapping.bytes();
    const bool inside = segment.kind == kind && bytes > 0 && bytes <= segment_bytes &&
                        location.offset <= segment_bytes - bytes && location.offset % 64 == 0;
    return inside ? segment.mapping.data() + location.offset : nullptr;
  }
  return nullptr;
}

bool RankMemory::FindArenas(const RankTensor& tensor, std::byte** arenas) const {
  const uint64_t bytes = tensor.shape.bytes();
  for (uint32_t i = 0; i < identity_.local_size; ++i) {
    if (i == identity_.local_rank) {
      arenas[i] = tensor.contribution;
      continue;
    }
    const PeerPart& part = peers_[i * kPartsMax + tensor.part];
    std::byte* const base = part.base.load(std::memory_order_acquire);
    // A segment that is too short for this tensor is an agent's mistake, and never ready.
    if (base == nullptr || part.bytes < bytes || tensor.offset > part.bytes - bytes) return false;
    arenas[i] = base + tensor.offset;
  }
  return true;
}

PushedRounds RankMemory::FindPushedRounds(const RankTensor& tensor) const {
  std::byte* arenas[kSummingRanksMax];
  if (!tensor.tells_pushes() || !FindArenas(tensor, arenas)) return {};
  PushedRounds rounds = PushedRounds::Visible();
  for (uint32_t i = 0; i < identity_.local_size; ++i) {
    if (i == identity_.local_rank) continue;
    rounds.Add(*reinterpret_cast<const PushedLine*>(arenas[i] + tensor.shape.pushed_offset()));
  }
  return rounds;
}

}  // namespace talweg::shm
