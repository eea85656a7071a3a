// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_LAYOUT_RANK_SUMS_H_
#define TALWEG_LIBS_SHM_LAYOUT_RANK_SUMS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libs/base/bytes.h"
#include "libs/shm/layout/control.h"
#include "libs/shm/layout/messages.h"
#include "libs/shm/layout/parts.h"

// How a tensor that the ranks sum lies in every rank's arena (docs/shared_memory.md, "Ranks that
// sum"):
//
//   0           contribution to even rounds: all parts, or (since minor version 7) the rank's own,
//               where every rank gives others
//   stride      contribution to odd rounds
//   2 * stride  ShareLine           of large tensors: how much of its share this rank has summed
//   + 64        the share's sums    where three ranks or more share, for the others to copy
//   then        PushedLine          the last round that this rank has pushed
//   + 64        u32[part_count]     lengths of the parts of contributions to even rounds
//   then        u32[part_count]     and to odd ones
//
// and for a tensor that they sum in place ("In place"), on its own pages:
//
//   0           the contribution, then the result
//   stride      InPlaceLine         local rank 0's counts
//   + 64        PushedLine, lengths as above
namespace talweg::shm {

// On a node with more ranks than this, the agent sums.
inline constexpr uint32_t kSummingRanksMax = 8;
// With this many ranks or more, the sums of a share have their own buffer.
inline constexpr uint32_t kKeepingRanksMin = 3;
inline constexpr uint64_t kSharedBytesMin = kMiB;
// A share is summed, and becomes visible, in pieces of this size: all inputs of a piece fit into a
// core's cache.
inline constexpr uint64_t kSharePieceBytes = 128 * kKiB;
// The same for a round that is summed in place.
inline constexpr uint64_t kInPlacePieceBytes = kSharePieceBytes;

struct alignas(64) ShareLine {
  // The round that the rank sums, or has summed; where its sums are; and how many pieces of its
  // share are done. One thread of the rank at a time writes it, with release.
  std::atomic<uint64_t> progress;
  uint64_t reserved[7];

  enum class Place : uint64_t {
    kKept = 0,  // In the share's own buffer, until the next round.
    // In the next round's contribution buffer, until that is withdrawn. After copying a piece,
    // check again that it was still there.
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
  // How many pieces can be copied.
  static constexpr uint64_t Pieces(uint64_t progress, uint64_t round) {
    return Begun(progress, round) && PlaceOf(progress) != Place::kWithdrawn
               ? progress & ((uint64_t{1} << kPieceBits) - 1)
               : 0;
  }
};
static_assert(sizeof(ShareLine) == 64 && std::atomic<uint64_t>::is_always_lock_free);

// Which pieces of a round that is summed in place have been begun, and how many are done. Each word
// is round << kPieceBits | pieces; for any other round its count is 0. Every rank writes it.
struct alignas(64) InPlaceLine {
  std::atomic<uint64_t> begun;
  // Threads sleep on its lower half, as a futex that processes share.
  std::atomic<uint64_t> done;
  std::atomic<uint32_t> sleepers;
  uint32_t reserved[11];

  static constexpr uint64_t Pack(uint64_t round, uint64_t pieces) {
    return round << ShareLine::kPieceBits | pieces;
  }
  static constexpr uint64_t Pieces(uint64_t word, uint64_t round) {
    return word >> ShareLine::kPieceBits == round
               ? word & ((uint64_t{1} << ShareLine::kPieceBits) - 1)
               : 0;
  }
};
static_assert(sizeof(InPlaceLine) == 64);

// The last round that the arena's rank has pushed from host memory; stored with release after the
// push. A round that all ranks' lines have reached is complete. (Since minor version 4.)
//
// The other fields hold the last two rounds, by parity, and are written before `round`: a rank
// pushes round r + 2 only when all ranks have taken round r. (Since minor version 5; 0 before.)
struct alignas(64) PushedLine {
  std::atomic<uint64_t> round;
  uint64_t signature[2];    // RoundSignature.
  uint32_t has_lengths[2];  // Not 0: some part is not full, and the table has the lengths.
  uint32_t reserved[8];
};
static_assert(sizeof(PushedLine) == 64 && offsetof(PushedLine, signature) == 8 &&
              offsetof(PushedLine, has_lengths) == 24);

// The shape is the same for the agent and the ranks.
struct RankSumShape {
  BufferShape buffer;  // Without its table, which lies further on.
  uint32_t parts_held =
      1;                // How many parts a buffer has room for: all, or those that a rank gives.
  uint64_t stride = 0;  // From one buffer to the next, or to what follows the only one.
  uint64_t share_bytes = 0;  // For each rank except the last; 0: every rank sums all.
  bool keeps_sums = false;   // Whether there is a buffer for the sums of a share.
  bool in_place = false;
  bool tells_pushes = false;  // Whether there is a PushedLine.
  bool has_tables = false;    // Whether there are tables of lengths, and signatures in the line.

  // `agent_minor`: the agent's minor version of the rank protocol.
  static constexpr RankSumShape Of(const BufferShape& buffer, uint32_t ranks, bool in_place,
                                   uint16_t agent_minor = kProtocolMinor) {
    const uint32_t held = agent_minor >= kOwnPartsMinor ? buffer.parts_given : buffer.part_count;
    const uint64_t held_bytes =
        held == buffer.part_count ? buffer.data_bytes : held * buffer.stride_bytes;
    RankSumShape shape{.buffer = buffer,
                       .parts_held = held,
                       .stride = RoundUp(held_bytes, kCacheLineBytes),
                       .in_place = in_place,
                       .tells_pushes = agent_minor >= kTellsPushesMinor,
                       .has_tables = agent_minor >= kCollectivesMinor};
    if (!in_place && buffer.all_get_one) {
      shape.share_bytes = ShareBytes(buffer.data_bytes, ranks);
      shape.keeps_sums = shape.share_bytes != 0 && ranks >= kKeepingRanksMin;
    }
    return shape;
  }
  // How much of a result of `bytes` each rank sums for all.
  static constexpr uint64_t ShareBytes(uint64_t bytes, uint32_t ranks) {
    return ranks > 1 && bytes >= kSharedBytesMin ? RoundUp((bytes + ranks - 1) / ranks, 4 * kKiB)
                                                 : 0;
  }
  // Where the contribution to `round` begins.
  constexpr uint64_t buffer_offset(uint64_t round) const {
    return in_place ? 0 : (round & 1) * stride;
  }
  // Where a part begins in the buffer of `giver`, a number in the group.
  constexpr uint64_t part_offset(uint32_t part, uint32_t giver) const {
    const uint32_t before = parts_held == buffer.part_count ? 0 : giver * parts_held;
    return (part - before) * buffer.stride_bytes;
  }
  // How many bytes all rounds' contributions take.
  constexpr uint64_t buffer_bytes() const { return in_place ? stride : 2 * stride; }
  constexpr uint64_t line_offset() const { return buffer_bytes(); }
  constexpr uint64_t sums_offset() const { return 2 * stride + sizeof(ShareLine); }
  constexpr uint64_t pushed_offset() const {
    if (in_place) return stride + sizeof(InPlaceLine);
    return share_bytes == 0 ? 2 * stride : sums_offset() + (keeps_sums ? share_bytes : 0);
  }
  // Where the lengths of the parts of a contribution to `round` lie.
  constexpr uint64_t table_offset(uint64_t round) const {
    return pushed_offset() + sizeof(PushedLine) + (round & 1) * table_stride();
  }
  constexpr uint64_t bytes() const {
    const uint64_t end = pushed_offset() + (tells_pushes ? sizeof(PushedLine) : 0) +
                         (has_tables ? 2 * table_stride() : 0);
    return in_place ? RoundUp(end, kPageBytes) : end;
  }

 private:
  constexpr uint64_t table_stride() const { return RoundUp(buffer.table_bytes(), kCacheLineBytes); }
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_LAYOUT_RANK_SUMS_H_
