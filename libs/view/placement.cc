// SPDX-License-Identifier: Apache-2.0
#include "libs/view/placement.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "libs/base/check.h"
#include "libs/base/fingerprint.h"

namespace talweg {
namespace {

// Slices begin on cache lines, which also keeps every element whole.
constexpr uint64_t kAlignmentBytes = kCacheLineBytes;

// A round is as long as its bytes take, and the first slice and the last one's results besides,
// which nothing overlaps. And what is under way to several owners, a slice or two each, has to find
// room in the queues of slow links: a switch's is 25 ms of a link or less, 300 KB at 100 Mb/s, and
// what it drops comes again later than what is behind it. So a run has at least so many slices,
// where they do not become so small that what each costs by itself shows; but all runs together
// never more than kManySlices.
constexpr uint64_t kRunSlicesMin = 256;
constexpr uint64_t kSliceBytesMin = 64 * kKiB;
constexpr uint64_t kManySlices = 8192;

// How long the slices of a run are at most.
uint64_t SliceBytes(const View& view, uint64_t run_bytes) {
  if (view.aggregators.empty()) return view.slice_bytes_max;  // Nothing travels.
  const uint64_t slices_min =
      std::clamp<uint64_t>(kManySlices / (2 * view.aggregators.size()), 1, kRunSlicesMin);
  const uint64_t wanted = std::bit_floor(std::max(run_bytes / slices_min, kSliceBytesMin));
  return std::min(wanted, view.slice_bytes_max);
}

// Cuts the bytes from `begin` to `end`, all of one part, into slices of equal length.
void AppendSlices(std::vector<Slice>& slices, AggregatorIndex owner, uint64_t begin, uint64_t end,
                  uint64_t slice_bytes_max, uint64_t& slot_offset) {
  const uint64_t count =
      std::max<uint64_t>((end - begin + slice_bytes_max - 1) / slice_bytes_max, 1);
  const uint64_t length =
      std::max(RoundUp((end - begin + count - 1) / count, kAlignmentBytes), kAlignmentBytes);
  uint64_t offset = begin;
  do {
    const uint64_t bytes = std::min(length, end - offset);
    slices.push_back({.offset_bytes = offset,
                      .length_bytes = static_cast<uint32_t>(bytes),
                      .owner = owner,
                      .slot_offset_bytes = slot_offset});
    slot_offset += RoundUp(bytes, kAlignmentBytes);
    offset += length;
  } while (offset < end);
}

// What lies between `begin` and `end` of the tensor goes to `owner`.
void AppendRun(std::vector<Slice>& slices, const Collective& collective, uint32_t part_count,
               AggregatorIndex owner, uint64_t begin, uint64_t end, uint64_t slice_bytes_max) {
  const uint64_t part_bytes = collective.part_bytes();
  const uint64_t stride = collective.stride_bytes();
  uint64_t slot_offset = 0;
  for (uint32_t part = collective.part_at(begin); part < part_count; ++part) {
    const uint64_t part_begin = part * stride;
    if (part > 0 && part_begin >= end) break;
    const uint64_t from = std::max(begin, part_begin);
    const uint64_t to = std::min(end, part_begin + part_bytes);
    if (from < to || (part_bytes == 0 && from == part_begin)) {
      AppendSlices(slices, owner, from, to, slice_bytes_max, slot_offset);
    }
  }
}

}  // namespace

uint64_t PlacementDigest(const View& view) {
  return Fingerprint64(view.Digest(), kPlacementVersion);
}

AggregatorIndex PrimaryOwner(const View& view, TensorKey key) {
  // Rendezvous with weights: the largest of weight / -ln(u), u uniform in (0, 1) from the hash.
  // A double's logarithm may differ in its last bit between C libraries, so u is compared
  // exactly where all weights are equal, and otherwise on a grid of 2^-24, computed in integers.
  AggregatorIndex best{0};
  double best_score = -1;
  uint64_t best_hash = 0;
  bool equal_weights = true;
  for (const ViewAggregator& aggregator : view.aggregators) {
    equal_weights &= aggregator.weight == view.aggregators.front().weight;
  }
  for (uint32_t i = 0; i < view.aggregators.size(); ++i) {
    const ViewAggregator& aggregator = view.aggregators[i];
    const uint64_t hash = Fingerprint64(key.value(), Fingerprint64(aggregator.name));
    if (equal_weights) {
      if (i == 0 || hash > best_hash) {
        best = AggregatorIndex{i};
        best_hash = hash;
      }
      continue;
    }
    const double u = (static_cast<double>(hash >> 40) + 0.5) / static_cast<double>(1 << 24);
    const double score =
        std::round(aggregator.weight / -std::log(u) * 1048576.0);  // Coarser than any rounding.
    if (score > best_score || (score == best_score && hash > best_hash)) {
      best = AggregatorIndex{i};
      best_score = score;
      best_hash = hash;
    }
  }
  return best;
}

Placement::Placement(const View& view, TensorKey key, const Collective& collective,
                     uint32_t rank_count) {
  TALWEG_CHECK(view.slice_bytes_max % kAlignmentBytes == 0 && view.slice_bytes_max > 0);
  const size_t owner_count = std::max<size_t>(view.aggregators.size(), 1);
  const AggregatorIndex first = PrimaryOwner(view, key);
  const uint64_t tensor_bytes = collective.bytes(rank_count);
  const uint32_t part_count = collective.part_count(rank_count);
  const auto append = [&](AggregatorIndex owner, uint64_t begin, uint64_t end) {
    AppendRun(slices_, collective, part_count, owner, begin, end, SliceBytes(view, end - begin));
  };
  if (owner_count == 1 || tensor_bytes < kStripeBytesMin * owner_count) {
    append(first, 0, tensor_bytes);
    return;
  }
  uint64_t weight_total = 0;
  for (const ViewAggregator& aggregator : view.aggregators) weight_total += aggregator.weight;
  uint64_t weight_before = 0;
  uint64_t begin = 0;
  for (uint32_t i = 0; i < owner_count; ++i) {
    const AggregatorIndex owner{static_cast<uint32_t>((first.value() + i) % owner_count)};
    weight_before += view.aggregators[owner.value()].weight;
    const auto exact = static_cast<unsigned __int128>(tensor_bytes) * weight_before / weight_total;
    const uint64_t end =
        i + 1 == owner_count
            ? tensor_bytes
            : std::min(tensor_bytes, RoundUp(static_cast<uint64_t>(exact), kAlignmentBytes));
    if (end > begin) append(owner, begin, end);
    begin = end;
  }
}

uint64_t Placement::SlotBytes(AggregatorIndex owner) const {
  uint64_t bytes = 0;
  for (const Slice& slice : slices_) {
    if (slice.owner == owner) bytes += RoundUp(slice.length_bytes, kAlignmentBytes);
  }
  return bytes;
}

bool Placement::Owns(AggregatorIndex owner) const {
  return std::any_of(slices_.begin(), slices_.end(),
                     [owner](const Slice& slice) { return slice.owner == owner; });
}

}  // namespace talweg
