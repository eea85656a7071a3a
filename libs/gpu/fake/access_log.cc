// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/fake/access_log.h"

#include <utility>

namespace talweg::gpu::fake {

std::optional<AccessLog::Access> AccessLog::Enter(uint64_t begin, uint64_t end, AccessKind kind,
                                                  Actor actor, const VectorClock& clock,
                                                  const std::string& what) {
  if (begin >= end) return std::nullopt;
  std::optional<Access> race;
  std::vector<Access> kept;
  kept.reserve(accesses_.size() + 1);
  for (Access& earlier : accesses_) {
    const bool overlaps = earlier.begin < end && begin < earlier.end;
    if (!overlaps) {
      kept.push_back(std::move(earlier));
      continue;
    }
    const bool known = earlier.tick <= clock.Of(earlier.actor);
    const bool conflicts = kind == AccessKind::kWrite || earlier.kind == AccessKind::kWrite;
    if (!known && conflicts && !race) race = earlier;
    // An access that races with the earlier one also races with this one, once the earlier one is
    // known.
    const bool covers = known && (kind == AccessKind::kWrite || earlier.kind == kind);
    if (!covers) {
      kept.push_back(std::move(earlier));
      continue;
    }
    if (earlier.begin < begin) {
      kept.push_back(earlier);
      kept.back().end = begin;
    }
    if (end < earlier.end) {
      kept.push_back(earlier);
      kept.back().begin = end;
    }
  }
  kept.push_back({begin, end, actor, clock.Of(actor), kind, what});
  accesses_ = std::move(kept);
  return race;
}

std::optional<AccessLog::Access> AccessLog::Unfinished(
    const VectorClock& clock, const std::function<bool(Actor)>& is_of_interest) const {
  for (const Access& access : accesses_) {
    if (access.tick > clock.Of(access.actor) && is_of_interest(access.actor)) return access;
  }
  return std::nullopt;
}

}  // namespace talweg::gpu::fake
