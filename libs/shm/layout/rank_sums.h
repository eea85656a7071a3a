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
//   2 * stride  ShareLine           of large tensors: how much of its share this rank has summed
//   + 64        the share's sums    where three ranks or more share, for the others to copy
namespace talweg::shm {

// More ranks on a node than this do not sum themselves.
inline constexpr uint32_t kSummingRanksMax = 8;
// From so many on the sums of a share have a buffer of their own.
inline constexpr uint32_t kKeepingRanksMin = 3;
inline constexpr uint64_t kSharedBytesMin = kMiB;
// In such pieces a share is summed and becomes visible: all inputs of one lie in a core's cache.
inline constexpr uint64_t kSharePieceBytes = 128 * kKiB;

struct alignas(64) ShareLine {
  // The round that the rank sums, or has summed, where, and how many of its share's pieces are
  // there. Written by one thread of the rank at a time, with release.
  std::atomic<uint64_t> progress;
  uint64_t reserved[7];

  enum class Place : uint64_t {
    kKept = 0,  // In the share's own buffer, until the next round.
    // In the buffer of the next round's contribution, until that is withdrawn: who has copied a
    // piece looks again whether it was still there.
    kNextContribution = 1,
    kWithdrawn = 2,
  };
  static constexpr int kPieceBits = 22;
  static constexpr int kPlaceBits = 2;

  static constexpr uint64_t Pack(uint64_t round, Place place, uint64_t pieces) {
    return (round << kPlaceBits | static_cast<uint64_t>(place)) << kPieceBits | pieces;
  }
  static constexpr bool Begun(uint64_t progress, uint64_t round) {
    return progress >> (kPlaceBits + kPieceBits) == round;
  }
  static constexpr Place PlaceOf(uint64_t progress) {
    return static_cast<Place>(progress >> kPieceBits & ((uint64_t{1} << kPlaceBits) - 1));
  }
  // That can be copied.
  static constexpr uint64_t Pieces(uint64_t progress, uint64_t round) {
    return Begun(progress, round) && PlaceOf(progress) != Place::kWithdrawn
               ? progress & ((uint64_t{1} << kPieceBits) - 1)
               : 0;
  }
};
static_assert(sizeof(ShareLine) == 64 && std::atomic<uint64_t>::is_always_lock_free);

// The same for agent and ranks.
struct RankSumShape {
  uint64_t tensor_bytes = 0;
  uint64_t stride = 0;
  uint64_t share_bytes = 0;  // Of each rank but the last; 0: every rank sums everything.
  bool keeps_sums = false;   // There is a buffer for the sums of a share.

  static constexpr RankSumShape Of(uint64_t tensor_bytes, uint32_t ranks) {
    RankSumShape shape{tensor_bytes, RoundUp(tensor_bytes, kCacheLineBytes), 0, false};
    if (ranks > 1 && tensor_bytes >= kSharedBytesMin) {
      shape.share_bytes = RoundUp((tensor_bytes + ranks - 1) / ranks, 4 * kKiB);
      shape.keeps_sums = ranks >= kKeepingRanksMin;
    }
    return shape;
  }
  constexpr uint64_t line_offset() const { return 2 * stride; }
  constexpr uint64_t sums_offset() const { return 2 * stride + sizeof(ShareLine); }
  constexpr uint64_t bytes() const {
    return share_bytes == 0 ? 2 * stride : sums_offset() + (keeps_sums ? share_bytes : 0);
  }
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_LAYOUT_RANK_SUMS_H_
