// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_COLLECTIVE_H_
#define TALWEG_LIBS_BASE_COLLECTIVE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "libs/base/bytes.h"
#include "libs/base/dtype.h"
#include "libs/base/encoding.h"

// What a collective operation is: which rank gives which part of a tensor, how the parts are
// combined, and which rank gets which part. Clients, agents and aggregators all ask here, so that
// another collective is only another row of kCollectives.
namespace talweg {

// Which parts of a tensor a rank gives, or gets. `n` is the number of ranks in the group, and a
// rank's number is its place in the group. Values are part of the wire, of shared memory and of the
// C ABI.
enum class Share : uint8_t {
  kUnspecified = 0,
  kWhole = 1,   // Every rank: all parts.
  kRoot = 2,    // The root: all parts. The others: none.
  kOwn = 3,     // Rank i: part i of n.
  kRow = 4,     // Rank i: parts i * n to i * n + n - 1 of n * n.
  kColumn = 5,  // Rank i: parts i, n + i, 2 * n + i, ... of n * n.
};

constexpr bool IsValid(Share share) { return share >= Share::kWhole && share <= Share::kColumn; }

// One kind of collective.
struct CollectiveRow {
  std::string_view name;
  Share gives = Share::kUnspecified;
  Share gets = Share::kUnspecified;
};

// If ranks give the same part, an op combines their bytes. If only one rank gives a part, its bytes
// are copied (Op::kCopy).
inline constexpr std::array<CollectiveRow, 8> kCollectives = {{
    {"all_reduce", Share::kWhole, Share::kWhole},
    {"reduce", Share::kWhole, Share::kRoot},
    {"reduce_scatter", Share::kWhole, Share::kOwn},
    {"broadcast", Share::kRoot, Share::kWhole},
    {"scatter", Share::kRoot, Share::kOwn},
    {"all_gather", Share::kOwn, Share::kWhole},
    {"gather", Share::kOwn, Share::kRoot},
    {"all_to_all", Share::kRow, Share::kColumn},
}};

// Whether rank `rank` of `rank_count` has part `part` by this share.
constexpr bool HasPart(Share share, uint32_t part, uint32_t rank, uint32_t rank_count,
                       uint32_t root) {
  switch (share) {
    case Share::kWhole: return true;
    case Share::kRoot: return rank == root;
    case Share::kOwn: return part == rank;
    case Share::kRow: return part / rank_count == rank;
    case Share::kColumn: return part % rank_count == rank;
    case Share::kUnspecified: return false;
  }
  return false;
}

// The rank to which part `part` belongs by this share, whichever rank is the root. nullopt: it
// belongs to all ranks, or to the root.
constexpr std::optional<uint32_t> HolderOf(Share share, uint32_t part, uint32_t rank_count) {
  switch (share) {
    case Share::kOwn: return part;
    case Share::kRow: return part / rank_count;
    case Share::kColumn: return part % rank_count;
    case Share::kWhole:
    case Share::kRoot:
    case Share::kUnspecified: break;
  }
  return std::nullopt;
}

// A collective of one shape, without the ranks that take part in it. A value.
struct Collective {
  DType dtype = DType::kUnspecified;
  Op op = Op::kUnspecified;
  Share gives = Share::kWhole;
  Share gets = Share::kWhole;
  uint64_t element_count = 0;  // The most elements that one part holds.
  // A side tensor, outside the steps: it has a group, which may name ranks of standbys
  // (docs/protocol.md, section 4).
  bool side = false;
  Encoding encoding = Encoding::kPlain;  // How contributions and results travel.
  // How long a round waits for late ranks once half of those it waits for are there; then it goes
  // on without them (docs/protocol.md, section 5). 0: as long as it takes.
  uint16_t patience_ms = 0;

  // The collectives that older interfaces name: a reduction over all ranks to all ranks, or a
  // broadcast.
  static constexpr Collective Of(DType dtype, Op op, uint64_t element_count) {
    return {dtype, op, op == Op::kCopy ? Share::kRoot : Share::kWhole, Share::kWhole,
            element_count};
  }

  // Returns nullptr if there is no such collective.
  constexpr const CollectiveRow* row() const {
    for (const CollectiveRow& row : kCollectives) {
      if (row.gives == gives && row.gets == gets) return &row;
    }
    return nullptr;
  }
  constexpr std::string_view name() const { return row() == nullptr ? "unknown" : row()->name; }

  // Whether each part is given by one rank.
  constexpr bool copies() const { return gives != Share::kWhole; }
  // Whether a root gives all parts. Otherwise the root, if there is one, gets them.
  constexpr bool from_root() const { return gives == Share::kRoot; }
  constexpr bool has_root() const { return gives == Share::kRoot || gets == Share::kRoot; }
  // Whether every rank gets the whole result. Then any rank that has it can give it to the others.
  constexpr bool all_get_all() const { return gets == Share::kWhole; }
  // Whether a rank takes part only in the parts that it gives or gets. In other collectives every
  // rank takes part in every part, if only to say that it has nothing to give.
  constexpr bool is_pairwise() const { return gives == Share::kRow; }
  // Whether a round needs every rank that was there when the tensor was declared.
  constexpr bool ends_with_any_rank() const { return side || needs_every_rank(); }
  // Whether the parts belong to ranks: without one of these the collective would mean something
  // else.
  constexpr bool needs_every_rank() const { return !Single(gives) || !Single(gets); }

  constexpr uint32_t part_count(uint32_t rank_count) const {
    if (gives == Share::kRow) return rank_count * rank_count;
    return needs_every_rank() ? rank_count : 1;
  }
  // Whether part_count() can count the parts.
  constexpr bool CanCountParts(uint32_t rank_count) const {
    return gives != Share::kRow || rank_count <= 0xffff;
  }
  // How many parts each rank gives, if every rank gives that many consecutive parts of its own;
  // otherwise the number of all parts.
  constexpr uint32_t parts_given(uint32_t rank_count) const {
    switch (gives) {
      case Share::kOwn: return 1;
      case Share::kRow: return rank_count;
      case Share::kWhole:
      case Share::kRoot:
      case Share::kColumn:
      case Share::kUnspecified: break;
    }
    return part_count(rank_count);
  }
  constexpr uint64_t part_bytes() const { return element_count * DTypeSize(dtype); }
  // From one part to the next. Parts begin on cache lines, even parts without bytes.
  constexpr uint64_t stride_bytes() const {
    return RoundUp(part_bytes() == 0 ? 1 : part_bytes(), kCacheLineBytes);
  }
  // How many bytes all parts take together.
  constexpr uint64_t bytes(uint32_t rank_count) const {
    return needs_every_rank() ? part_count(rank_count) * stride_bytes() : part_bytes();
  }
  // The part that the byte at `offset_bytes` of the tensor belongs to, and the byte's place in it.
  constexpr uint32_t part_at(uint64_t offset_bytes) const {
    if (!needs_every_rank()) return 0;
    return static_cast<uint32_t>(offset_bytes / stride_bytes());
  }
  constexpr uint64_t offset_in_part(uint64_t offset_bytes) const {
    return offset_bytes - part_at(offset_bytes) * stride_bytes();
  }

  // Whether a round may be over before all ranks have pushed it.
  constexpr bool leaves_out() const { return patience_ms != 0; }

  constexpr bool encodes() const { return encoding != Encoding::kPlain; }
  // Memory for what travels is as large as the encoding may need. There the bytes from
  // `offset_bytes` of the tensor on, a multiple of kCacheLineBytes, begin at travel_offset().
  constexpr uint64_t travel_offset(uint64_t offset_bytes) const {
    return TravelBytesMax(encoding, offset_bytes);
  }
  constexpr uint64_t travel_bytes_max(uint64_t bytes) const {
    return TravelBytesMax(encoding, bytes);
  }

  constexpr bool Gives(uint32_t part, uint32_t rank, uint32_t rank_count, uint32_t root) const {
    return HasPart(gives, part, rank, rank_count, root);
  }
  constexpr bool Gets(uint32_t part, uint32_t rank, uint32_t rank_count, uint32_t root) const {
    return HasPart(gets, part, rank, rank_count, root);
  }

  friend constexpr bool operator==(const Collective&, const Collective&) = default;

 private:
  static constexpr bool Single(Share share) {
    return share == Share::kWhole || share == Share::kRoot;
  }
};

// "sum" (an all_reduce), "reduce_scatter sum", "all_gather".
std::string Words(const Collective& collective);
// "f32[100] sum", "f32[100] reduce_scatter sum", "f32[100] all_gather encoded as runs".
std::string Describe(const Collective& collective);

// Returns why there can be no such collective ("there is no dtype 77"), or "".
std::string Problem(const Collective& collective);

// What a rank says about its round, in 8 bytes. Ranks of one round must say the same, and an error
// can put both sides into words. 0 says nothing.
using RoundSignature = uint64_t;
inline constexpr uint64_t kSignatureElementsMax = (uint64_t{1} << 40) - 1;

// `element_count`: the number that must be equal at all ranks. It is all elements of a reduction,
// or those of one row if the number of rows may differ. Taken modulo kSignatureElementsMax + 1.
RoundSignature SignatureOf(const Collective& collective, uint64_t element_count);
// "f32[100] sum", "f32 all_gather, rows of 100"; "" for 0. "shape [2, 6]" for a signature that
// Python's clients make of a tensor's shape alone: 0xfe << 56 | the number of dimensions << 52 |
// each dimension in 52 / number bits, the last in the lowest; for a shape that does not fit, 0xff
// << 56 | a digest.
std::string DescribeSignature(RoundSignature signature);
// One side of a disagreement: "f32[100] sum, 400 bytes", "400 bytes", "f32 all_gather, rows of 7".
std::string DescribeGiven(RoundSignature signature, std::optional<uint64_t> length_bytes);

}  // namespace talweg

#endif  // TALWEG_LIBS_BASE_COLLECTIVE_H_
