// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_IDS_H_
#define TALWEG_LIBS_BASE_IDS_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <ostream>

namespace talweg {

// An integer that does not mix with others: Epoch{3} is not Round{3}, and neither is 3.
template <typename Tag, typename Integer>
class StrongId {
 public:
  using Value = Integer;

  constexpr StrongId() = default;
  constexpr explicit StrongId(Integer value) : value_(value) {}

  constexpr Integer value() const { return value_; }
  constexpr StrongId Next() const { return StrongId(value_ + 1); }

  friend constexpr auto operator<=>(const StrongId&, const StrongId&) = default;
  friend std::ostream& operator<<(std::ostream& out, StrongId id) { return out << +id.value_; }

 private:
  Integer value_ = 0;
};

// One training job, for the whole life of its scheduler's store. Never reused.
using JobId = StrongId<struct JobIdTag, uint64_t>;
// A configuration of members and aggregators. It grows with every change and never goes back. 0:
// none.
using Epoch = StrongId<struct EpochTag, uint64_t>;
// The configured place of a node in its job. Fixes the order of sums.
using NodeRank = StrongId<struct NodeRankTag, uint32_t>;
// One run of a process: drawn at random when it starts, never reused.
using Incarnation = StrongId<struct IncarnationTag, uint64_t>;
// A rank in the job, counted over all nodes in node order.
using Rank = StrongId<struct RankTag, uint32_t>;
// A rank on its node.
using LocalRank = StrongId<struct LocalRankTag, uint32_t>;
// The place of a member in its view's order of sums, or of an aggregator in its view's list.
using MemberIndex = StrongId<struct MemberIndexTag, uint32_t>;
using AggregatorIndex = StrongId<struct AggregatorIndexTag, uint32_t>;
// The fingerprint of a tensor's name: every process computes the same, in whatever order it
// declares its tensors.
using TensorKey = StrongId<struct TensorKeyTag, uint64_t>;
// Which push_pull of a tensor this is. The first is 1; 0 means none yet.
using Round = StrongId<struct RoundTag, uint64_t>;
// A slice of a tensor, counted from its first byte.
using SliceIndex = StrongId<struct SliceIndexTag, uint32_t>;
// One endpoint to a peer, in one process. Never reused in that process.
using ConnectionId = StrongId<struct ConnectionIdTag, uint64_t>;

}  // namespace talweg

template <typename Tag, typename Integer>
struct std::hash<talweg::StrongId<Tag, Integer>> {
  size_t operator()(talweg::StrongId<Tag, Integer> id) const noexcept {
    return std::hash<Integer>{}(id.value());
  }
};

#endif  // TALWEG_LIBS_BASE_IDS_H_
