// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/daemon/shared_arena.h"

#include <algorithm>
#include <utility>

#include "libs/base/bytes.h"
#include "libs/shm/layout/control.h"
#include "libs/shm/layout/rank_sums.h"

namespace talweg::shm {

Outcome<SharedPlace> SharedPlan::Place(const BufferShape& shape, bool in_place) {
  const uint64_t left = bytes_max_ - used_;
  const uint64_t bytes =
      RoundUp(RankSumShape::Of(shape, ranks_, in_place).bytes(), kCacheLineBytes);
  if (bytes > left) {
    return Failure{
        RankStatus::kOutOfMemory,
        "contributions of each local rank: " + std::string(in_place ? "a buffer" : "two buffers") +
            " of " + FormatBytes(shape.data_bytes) + " more would pass the limit of " +
            FormatBytes(bytes_max_) + ", of which " + FormatBytes(used_) +
            " are used; raise the agent's arena_bytes_max, or declare less"};
  }
  // Uses the newest part of its kind, or a new one.
  size_t index = parts_.size();
  while (index > 0 && parts_[index - 1].in_place != in_place) --index;
  if (index == 0 || parts_[index - 1].bytes - parts_[index - 1].used < bytes) {
    if (parts_.size() == kPartsMax) {
      return Failure{RankStatus::kLimit, "the ranks' arenas have " + std::to_string(kPartsMax) +
                                             " parts already; declare the largest tensors first"};
    }
    parts_.push_back({RoundUp(std::max({bytes, part_bytes_min_, used_}), kPageBytes), 0, in_place});
    index = parts_.size();
  }
  Part& part = parts_[index - 1];
  const SharedPlace place{static_cast<uint32_t>(index - 1), part.bytes, part.used, in_place};
  part.used += bytes;
  used_ += bytes;
  return place;
}

void SharedPlan::Clear() {
  parts_.clear();
  used_ = 0;
}

Outcome<Location> SharedArena::At(const SharedPlace& place, uint32_t* next_segment) {
  if (parts_.size() <= place.part) parts_.resize(place.part + 1);
  Part& part = parts_[place.part];
  if (part.id == 0) {
    Outcome<Segment> segment = CreateSegment(SegmentUse::kSharedContribution, place.part_bytes);
    if (!segment.ok()) return segment.failure();
    part = {(*next_segment)++, std::move(segment).value(), place.in_place};
  }
  return Location{part.id, place.offset};
}

const SharedArena::Part* SharedArena::FindPart(uint32_t part) const {
  return part < parts_.size() && parts_[part].id != 0 ? &parts_[part] : nullptr;
}

const SharedArena::Part* SharedArena::FindSegment(uint32_t id) const {
  const auto it =
      std::find_if(parts_.begin(), parts_.end(), [id](const Part& part) { return part.id == id; });
  return it == parts_.end() ? nullptr : &*it;
}

}  // namespace talweg::shm
