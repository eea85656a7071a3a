// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/daemon/arena.h"

#include <algorithm>
#include <utility>

#include "libs/base/bytes.h"
#include "libs/base/check.h"
#include "libs/shm/layout/control.h"

namespace talweg::shm {
Arena::Arena(Config config, ArenaBudget* budget, uint32_t* next_segment)
    : config_(std::move(config)), budget_(budget), next_segment_(next_segment) {}

Outcome<Arena::Buffer> Arena::Allocate(uint64_t bytes) {
  TALWEG_CHECK(bytes > 0);
  const auto [bytes_max, all_used] = *budget_;
  if (bytes > bytes_max || all_used > bytes_max - bytes) {
    return Failure{RankStatus::kOutOfMemory,
                   config_.owner + ": " + FormatBytes(bytes) + " more would pass the limit of " +
                       FormatBytes(bytes_max) + ", of which " + FormatBytes(all_used) +
                       " are used; raise the agent's arena_bytes_max, or declare less"};
  }
  // A rank maps the pages of such a buffer once more (talweg_attach).
  const uint64_t rounded =
      RoundUp(bytes, config_.use == SegmentUse::kOnePlace ? kPageBytes : kCacheLineBytes);
  if (parts_.empty() || parts_.back().segment().bytes - parts_.back().used < rounded) {
    // As large as all segments before it together, so that there are few descriptors, whatever the
    // model's size. What is not cut into buffers takes no memory, except at its beginning.
    const uint64_t segment_bytes =
        RoundUp(std::max({rounded, config_.segment_bytes_min, used_}), kPageBytes);
    Outcome<Segment> segment = CreateSegment(config_.use, segment_bytes);
    if (!segment.ok()) return segment.failure();
    parts_.push_back(Part{
        (*next_segment_)++,
        std::make_shared<GrowingSegment>(config_.use, std::move(segment).value(), config_.owner)});
  }
  Part& part = parts_.back();
  Buffer buffer{{part.id, part.used},
                {part.segment().mapping.data() + part.used, bytes},
                part.place->Plan(part.used, part.used + rounded)};
  part.used += rounded;
  used_ += rounded;
  budget_->used += rounded;
  return buffer;
}

void Arena::Clear() {
  parts_.clear();
  budget_->used -= used_;
  used_ = 0;
}

Arena::Part* Arena::Find(uint32_t segment) {
  const auto it = std::find_if(parts_.begin(), parts_.end(),
                               [segment](const Part& part) { return part.id == segment; });
  return it == parts_.end() ? nullptr : &*it;
}

}  // namespace talweg::shm
