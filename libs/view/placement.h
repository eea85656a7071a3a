// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_VIEW_PLACEMENT_H_
#define TALWEG_LIBS_VIEW_PLACEMENT_H_

#include <cstdint>
#include <vector>

#include "libs/base/collective.h"
#include "libs/base/ids.h"
#include "libs/view/participation.h"
#include "libs/view/view.h"

namespace talweg::view {

// A part of a tensor that travels and is summed as one.
struct Slice {
  uint64_t offset_bytes = 0;       // From the tensor's first byte; a multiple of 64.
  uint32_t length_bytes = 0;       // At least 1, but for the one slice of a part without bytes.
  AggregatorIndex owner;           // Who sums it. 0 also where the view has no aggregators.
  uint64_t slot_offset_bytes = 0;  // Among the same owner's slices of this tensor; multiple of 64.

  friend bool operator==(const Slice&, const Slice&) = default;
};

// Tensors of fewer bytes than this for each aggregator are placed whole.
inline constexpr uint64_t kStripeBytesMin = 64 * kKiB;

// Where the bytes of a tensor are summed: a pure function of the view and of this tensor, never
// of other tensors. A slice belongs to one part of the tensor.
//
// What follows is the dealing `striped`. By any other one each part is cut into equal slices of at
// most `slice_bytes_max`, and a hash of each slice's key selects its owner (slice_hash.h), among
// the aggregators beside the rank that the part belongs to, if it is summed there.
//
// A tensor of at least kStripeBytesMin bytes for each aggregator is **striped**: it is cut into one
// run of bytes for each, in proportion to its weight, beginning with the aggregator that its key
// selects. A smaller tensor goes whole to the aggregator that weighted rendezvous hashing selects
// (Thaler, Ravishankar, "Using name-based mappings to increase hit rates", 1998), so that few
// tensors move when aggregators come or go.
//
// Where a tensor that is large enough to be striped has parts that not all ranks get, they are
// summed beside the ranks that they belong to: a part goes to the aggregators on the host of the
// rank that gets it; if there is none, or the root gets it, to those on the host of the rank that
// gives it. So it crosses a link only where it must. The aggregators of one host share its parts as
// all share a striped tensor. Parts that have no such host are striped. A root counts for nothing
// here: a member may know less of it than an owner.
//
// Where all ranks give a part, its host's link carries it once for every other host. So if one host
// has more than one part in (hosts - 1), striping loads the busiest link less, and all parts are
// striped. Where all ranks get a part, striping always loads it as little, or less.
//
// Each run is cut into equal slices of at most `slice_bytes_max`, and of a power of two that makes
// at least 256 of them, down to 64 KiB: a round's first slice and its last results overlap with
// nothing, and slow links have short queues.
class Placement {
 public:
  // `group`: the tensor's; a collective whose parts belong to ranks needs one that names them.
  Placement(const View& view, TensorKey key, const Collective& collective, const Group& group);

  // In order of their offsets; together they cover every part once.
  const std::vector<Slice>& slices() const { return slices_; }

  // Bytes of slots that `owner` needs for one member's contributions to this tensor.
  uint64_t SlotBytes(AggregatorIndex owner) const;

  // Whether `owner` sums any slice of the tensor.
  bool Owns(AggregatorIndex owner) const;

  friend bool operator==(const Placement&, const Placement&) = default;

 private:
  std::vector<Slice> slices_;
};

// Goes up with every change of where a byte is placed or how a run is cut: releases that do either
// differently must not exchange slices.
inline constexpr uint64_t kPlacementVersion = 3;

// What two processes must have alike for that: their view, and the version of its placement.
uint64_t PlacementDigest(const View& view);

// Who agrees on a tensor's name, dtype, length and operation, and decides its open round after a
// failure: depends on the name alone, so that members which disagree on the length still meet.
AggregatorIndex PrimaryOwner(const View& view, TensorKey key);

}  // namespace talweg::view

#endif  // TALWEG_LIBS_VIEW_PLACEMENT_H_
