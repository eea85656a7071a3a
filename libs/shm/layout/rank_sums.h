// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_LAYOUT_RANK_SUMS_H_
#define TALWEG_LIBS_SHM_LAYOUT_RANK_SUMS_H_

#include <atomic>
#include <cstdint>

#include "libs/base/bytes.h"

// How a tensor that the ranks sum lies in every rank's arena (docs/shared_memory.md, "Ranks that
// sum"):
//
//   0           contribution to even rounds
//   stride      contribution to odd rounds
//   2 * stride  ShareLine        of large tensors of three ranks or more: this rank's share of
//   + 64        the share's sums   the sums, for the others to copy
namespace talweg::shm {

// More ranks on a node than this do not sum themselves.
inline constexpr uint32_t kSummingRanksMax = 8;
inline constexpr uint32_t kSharingRanksMin = 3;
inline constexpr uint64_t kSharedBytesMin = kMiB;
// In such pieces a share is summed and becomes visible: all inputs of one lie in a core's cache.
inline constexpr uint64_t kSharePieceBytes = 128 * kKiB;

struct alignas(64) ShareLine {
  // The round that the rank sums, or has summed, and how many of its share's pieces it has.
  // Written with release, by one thread of the rank at a time.
  std::atomic<uint64_t> progress;
  uint64_t reserved[7];

  static constexpr int kPieceBits = 24;
  static constexpr uint64_t Pack(uint64_t round, uint64_t pieces) {
    return round << kPieceBits | pieces;
  }
  static constexpr uint64_t Pieces(uint64_t progress, uint64_t round) {
    return progress >> kPieceBits == round ? progress & ((uint64_t{1} << kPieceBits) - 1) : 0;
  }
};
static_assert(sizeof(ShareLine) == 64 && std::atomic<uint64_t>::is_always_lock_free);

// The same for agent and ranks.
struct RankSumShape {
  uint64_t tensor_bytes = 0;
  uint64_t stride = 0;
  uint64_t share_bytes = 0;  // Of each rank but the last; 0: every rank sums everything.

  static constexpr RankSumShape Of(uint64_t tensor_bytes, uint32_t ranks) {
    RankSumShape shape{tensor_bytes, RoundUp(tensor_bytes, kCacheLineBytes), 0};
    if (ranks >= kSharingRanksMin && tensor_bytes >= kSharedBytesMin) {
      shape.share_bytes = RoundUp((tensor_bytes + ranks - 1) / ranks, 4 * kKiB);
    }
    return shape;
  }
  constexpr uint64_t line_offset() const { return 2 * stride; }
  constexpr uint64_t sums_offset() const { return 2 * stride + sizeof(ShareLine); }
  constexpr uint64_t bytes() const {
    return share_bytes == 0 ? 2 * stride : sums_offset() + share_bytes;
  }
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_LAYOUT_RANK_SUMS_H_
