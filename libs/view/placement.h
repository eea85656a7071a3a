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
  uint32_t length_bytes = 0;       // At least 1, except for the one slice of a part without bytes.
  AggregatorIndex owner;           // The aggregator that sums it; also 0 if the view has none.
  uint64_t slot_offset_bytes = 0;  // Among the same owner's slices of this tensor; multiple of 64.

  friend bool operator==(const Slice&, const Slice&) = default;
};

// Tensors of fewer bytes than this for each aggregator are placed whole.
inline constexpr uint64_t kStripeBytesMin = 64 * kKiB;

// Where the bytes of a tensor are summed. A pure function of the view and of this tensor; other
// tensors do not matter. A slice belongs to one part of the tensor.
//
// The following describes the dealing `striped`. With any other dealing, each part is cut into
// equal slices of at most `slice_bytes_max`, and a hash of each slice's key selects its owner
// (slice_hash.h). If the part is summed beside the rank that it belongs to, the owner is one of the
// aggregators there.
//
// A tensor of at least kStripeBytesMin bytes for each aggregator is **striped**: it is cut into one
// run of bytes for each aggregator, in proportion to its weight. The first run belongs to the
// aggregator that the tensor's key selects. A smaller tensor goes whole to the aggregator that
// weighted rendezvous hashing selects (Thaler, Ravishankar, "Using name-based mappings to increase
// hit rates", 1998), so that few tensors move when aggregators come or go.
//
// If a tensor that is large enough to be striped has parts that not all ranks get, these parts are
// summed beside the ranks that they belong to. A part goes to the aggregators on the host of the
// rank that gets it. If there is no such host, or the root gets the part, it goes to those on the
// host of the rank that gives it. Thus it crosses a link only where it must. The aggregators of one
// host share its parts as all aggregators share a striped tensor. Parts that have no such host are
// striped. A root counts for nothing here: a member may know less of it than an owner.
//
// If all ranks give a part, its host's link carries the part once for every other host. Therefore,
// if one host has more than one part in (hosts - 1), striping loads the busiest link less, and all
// parts are striped. If all ranks get a part, striping always loads the busiest link as little, or
// less.
//
// Each run is cut into equal slices of at most `slice_bytes_max`. Neither are they larger than the
// largest power of two that makes at least 256 slices, down to 64 KiB: nothing overlaps with a
// round's first slice and its last results, and slow links have short queues.
class Placement {
 public:
  // `group`: the tensor's. A collective whose parts belong to ranks needs a group that names them.
  Placement(const View& view, TensorKey key, const Collective& collective, const Group& group);

  // In order of their offsets; together they cover every part exactly once.
  const std::vector<Slice>& slices() const { return slices_; }

  // How many bytes of slots `owner` needs for one member's contributions to this tensor.
  uint64_t SlotBytes(AggregatorIndex owner) const;

  // Whether `owner` sums any slice of the tensor.
  bool Owns(AggregatorIndex owner) const;

  friend bool operator==(const Placement&, const Placement&) = default;

 private:
  std::vector<Slice> slices_;
};

// Increased with every change of where a byte is placed or how a run is cut: releases that differ
// in either must not exchange slices.
inline constexpr uint64_t kPlacementVersion = 3;

// Two processes may exchange slices if this is equal: it covers their view and placement version.
uint64_t PlacementDigest(const View& view);

// The aggregator at which all agree on a tensor's name, dtype, length and operation, and which
// decides about its open round after a failure. It depends on the name alone, so that members which
// disagree on the length still meet there.
AggregatorIndex PrimaryOwner(const View& view, TensorKey key);

}  // namespace talweg::view

#endif  // TALWEG_LIBS_VIEW_PLACEMENT_H_
