// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_LAYOUT_PARTS_H_
#define TALWEG_LIBS_SHM_LAYOUT_PARTS_H_

#include <cstdint>

#include "libs/base/bytes.h"
#include "libs/base/collective.h"

// Where the parts of a tensor lie in a buffer, and which of them a rank gives or gets
// (docs/shared_memory.md, "Collectives and parts"). Ranks and agents both use this.
namespace talweg::shm {

// Larger tensors are refused.
inline constexpr uint64_t kTensorBytesMax = 16 * kGiB;
// The message that declares a group of some of the job's ranks has room for this many.
inline constexpr uint32_t kGroupRanksMax = 8192;

// Some parts of a tensor, in ascending order. A value.
struct Parts {
  uint32_t first = 0;
  uint32_t step = 1;
  uint32_t count = 0;

  constexpr uint32_t operator[](uint32_t i) const { return first + i * step; }

  // The parts that rank `rank` of `rank_count` has by `share`, out of `part_count`.
  static constexpr Parts Of(Share share, uint32_t rank, uint32_t rank_count, uint32_t root,
                            uint32_t part_count) {
    switch (share) {
      case Share::kWhole: return {0, 1, part_count};
      case Share::kRoot: return {0, 1, rank == root ? part_count : 0};
      case Share::kOwn: return {rank, 1, 1};
      case Share::kRow: return {rank * rank_count, 1, rank_count};
      case Share::kColumn: return {rank, rank_count, rank_count};
      case Share::kUnspecified: break;
    }
    return {};
  }
};

// The one rank that gives `part`, if the collective copies.
constexpr uint32_t GiverOf(Share gives, uint32_t part, uint32_t rank_count, uint32_t root) {
  return HolderOf(gives, part, rank_count).value_or(root);
}

// A buffer for one contribution or one result of a tensor:
//
//   0             its parts, one every stride_bytes
//   table_offset  u32 lengths[part_count]: the bytes of each part
//
// The table counts if a push says so (kPushInParts), and in results of rounds whose parts may be
// shorter than declared. Clients and agents before minor version 5 do not know it.
struct BufferShape {
  uint64_t data_bytes = 0;    // In all parts.
  uint64_t part_bytes = 0;    // In one part, at most.
  uint64_t stride_bytes = 0;  // From one part to the next.
  uint32_t part_count = 1;
  uint32_t parts_given = 1;  // As Collective::parts_given.
  uint32_t element_bytes = 1;
  // All ranks get the same, so ranks that sum a large tensor share the work.
  bool all_get_one = true;

  // Whether a buffer can have such a shape: nothing overflows, and it is not too large.
  static constexpr bool Fits(const Collective& collective, uint32_t rank_count) {
    const uint64_t element_bytes = DTypeSize(collective.dtype);
    if (element_bytes == 0 || rank_count == 0 ||
        collective.element_count > kTensorBytesMax / element_bytes ||
        !collective.CanCountParts(rank_count)) {
      return false;
    }
    const uint64_t part = collective.stride_bytes() + sizeof(uint32_t);
    return collective.part_count(rank_count) <= (kTensorBytesMax + kCacheLineBytes) / part;
  }
  // For collectives that fit.
  static constexpr BufferShape Of(const Collective& collective, uint32_t rank_count) {
    return {.data_bytes = collective.bytes(rank_count),
            .part_bytes = collective.part_bytes(),
            .stride_bytes = collective.stride_bytes(),
            .part_count = collective.part_count(rank_count),
            .parts_given = collective.parts_given(rank_count),
            .element_bytes = static_cast<uint32_t>(DTypeSize(collective.dtype)),
            .all_get_one = collective.all_get_all() && !collective.needs_every_rank()};
  }

  constexpr uint64_t part_offset(uint32_t part) const { return part * stride_bytes; }
  constexpr uint64_t table_offset() const { return RoundUp(data_bytes, kCacheLineBytes); }
  constexpr uint64_t table_bytes() const { return uint64_t{part_count} * sizeof(uint32_t); }
  constexpr uint64_t total_bytes() const { return table_offset() + table_bytes(); }
  // A part whose length does not fit into the table is always full.
  constexpr bool has_lengths() const { return part_bytes <= UINT32_MAX; }
  constexpr bool IsLength(uint64_t bytes) const {
    return bytes <= part_bytes && bytes % element_bytes == 0;
  }
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_LAYOUT_PARTS_H_
