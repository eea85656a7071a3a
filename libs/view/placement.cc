// SPDX-License-Identifier: Apache-2.0
#include "libs/view/placement.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "libs/base/check.h"
#include "libs/base/fingerprint.h"
#include "libs/view/slice_hash.h"

namespace talweg::view {
namespace {

// Slices begin on cache lines, which also keeps every element whole.
constexpr uint64_t kAlignmentBytes = kCacheLineBytes;

// A round takes as long as its bytes do, plus the first slice and the last one's results, which
// nothing overlaps. Also, the slices under way to several owners, one or two each, must fit into
// the queues of slow links: a switch's queue is 25 ms of a link or less, 300 KB at 100 Mb/s, and
// what it drops comes again after later slices. Therefore a run has at least this many slices,
// unless they become so small that the cost of each one shows. All runs together never have more
// than kManySlices.
constexpr uint64_t kRunSlicesMin = 256;
constexpr uint64_t kSliceBytesMin = 64 * kKiB;
constexpr uint64_t kManySlices = 8192;

// The largest size of a run's slices, for a tensor of `run_count` runs.
uint64_t SliceBytes(const View& view, uint64_t run_bytes, size_t run_count) {
  if (view.aggregators.empty()) return view.slice_bytes_max;  // Nothing travels.
  const uint64_t slices_min = std::clamp<uint64_t>(kManySlices / (2 * run_count), 1, kRunSlicesMin);
  const uint64_t wanted = std::bit_floor(std::max(run_bytes / slices_min, kSliceBytesMin));
  return std::min(wanted, view.slice_bytes_max);
}

// Parts of a tensor that some aggregators share. The parts are laid one after another on a line.
struct Site {
  std::vector<AggregatorIndex> owners;  // Ascending.
  std::vector<uint32_t> parts;          // Ascending.
};

// The owner that weighted rendezvous hashing selects: the largest of weight / -ln(u), with u
// uniform in (0, 1) from the hash. A double's logarithm may differ in its last bit between C
// libraries. Therefore u is compared exactly if all weights are equal; otherwise on a grid of
// 2^-24, computed in integers.
AggregatorIndex Select(const View& view, TensorKey key,
                       const std::vector<AggregatorIndex>& owners) {
  const auto weight_of = [&](AggregatorIndex owner) {
    return view.aggregators[owner.value()].weight;
  };
  const bool equal_weights = std::all_of(owners.begin(), owners.end(), [&](AggregatorIndex owner) {
    return weight_of(owner) == weight_of(owners.front());
  });
  AggregatorIndex best = owners.front();
  double best_score = -1;
  uint64_t best_hash = 0;
  for (const AggregatorIndex owner : owners) {
    const uint64_t hash =
        Fingerprint64(key.value(), Fingerprint64(view.aggregators[owner.value()].name));
    double score = 0;
    if (!equal_weights) {
      const double u = (static_cast<double>(hash >> 40) + 0.5) / static_cast<double>(1 << 24);
      score =
          std::round(weight_of(owner) / -std::log(u) * 1048576.0);  // Coarser than any rounding.
    }
    if (score > best_score || (score == best_score && hash > best_hash)) {
      best = owner;
      best_score = score;
      best_hash = hash;
    }
  }
  return best;
}

std::vector<AggregatorIndex> AllOwners(const View& view) {
  std::vector<AggregatorIndex> owners;
  for (uint32_t i = 0; i < view.aggregators.size(); ++i) owners.push_back(AggregatorIndex{i});
  return owners;
}

// The hosts of a group's ranks, numbered here.
struct Hosts {
  std::vector<std::vector<AggregatorIndex>> owners;  // By host: the aggregators there.
  std::vector<std::optional<size_t>> of_rank;        // nullopt: no member has its place.

  size_t CountOfRanks() const {
    std::set<size_t> seen;
    for (const std::optional<size_t>& host : of_rank) {
      if (host) seen.insert(*host);
    }
    return seen.size();
  }
};

Hosts HostsOf(const View& view, const Group& group) {
  Hosts hosts;
  std::map<std::string, size_t> by_id;
  std::vector<size_t> of_member;
  for (const ViewMember& member : view.members) {
    // An unknown host counts as a host of its own.
    size_t host = hosts.owners.size();
    if (!member.host_id.empty()) host = by_id.emplace(member.host_id, host).first->second;
    hosts.owners.resize(std::max(hosts.owners.size(), host + 1));
    of_member.push_back(host);
  }
  for (const AggregatorIndex owner : AllOwners(view)) {
    const auto host = by_id.find(view.aggregators[owner.value()].host_id);
    if (host != by_id.end()) hosts.owners[host->second].push_back(owner);
  }
  for (const Place& place : group) {
    const std::optional<MemberIndex> member = view.IndexOf(place.node);
    const bool is_there = member && !view.members[member->value()].standby;
    hosts.of_rank.push_back(is_there ? std::optional(of_member[member->value()]) : std::nullopt);
  }
  return hosts;
}

// The host on which the part is summed: that of the rank which gets it; else that of the rank which
// gives it. nullopt: there is no such rank, or no aggregator beside it.
std::optional<size_t> HostOfPart(const Collective& collective, uint32_t part, const Hosts& hosts) {
  for (const Share share : {collective.gets, collective.gives}) {
    const auto rank_count = static_cast<uint32_t>(hosts.of_rank.size());
    const std::optional<uint32_t> rank = HolderOf(share, part, rank_count);
    const std::optional<size_t> host = rank ? hosts.of_rank[*rank] : std::nullopt;
    if (host && !hosts.owners[*host].empty()) return host;
  }
  return std::nullopt;
}

// Returns which aggregators sum which parts. Each part is in one site.
std::vector<Site> SitesOf(const View& view, const Collective& collective, const Group& group) {
  const auto rank_count = static_cast<uint32_t>(std::max<size_t>(group.size(), 1));
  std::vector<uint32_t> parts(collective.part_count(rank_count));
  std::iota(parts.begin(), parts.end(), 0);
  std::vector<Site> striped{{.owners = AllOwners(view), .parts = std::move(parts)}};
  if (!collective.needs_every_rank() || collective.all_get_all() ||
      collective.bytes(rank_count) < kStripeBytesMin * view.aggregators.size()) {
    return striped;
  }
  const Hosts hosts = HostsOf(view, group);
  std::vector<Site> sites;
  for (const std::vector<AggregatorIndex>& owners : hosts.owners) {
    if (owners.size() == view.aggregators.size()) return striped;
    sites.push_back({.owners = owners, .parts = {}});
  }
  Site others{.owners = striped.front().owners, .parts = {}};
  for (const uint32_t part : striped.front().parts) {
    const std::optional<size_t> host = HostOfPart(collective, part, hosts);
    (host ? sites[*host] : others).parts.push_back(part);
  }
  if (!collective.copies()) {
    const size_t host_count = hosts.CountOfRanks();
    for (const Site& site : sites) {
      if (site.parts.size() * (host_count - 1) > striped.front().parts.size()) return striped;
    }
  }
  sites.push_back(std::move(others));
  std::erase_if(sites, [](const Site& site) { return site.parts.empty(); });
  return sites;
}

// Cuts the bytes from `begin` to `end`, all of one part, into slices of equal length.
void AppendSlices(std::vector<Slice>& slices, AggregatorIndex owner, uint64_t begin, uint64_t end,
                  uint64_t slice_bytes_max) {
  const uint64_t count =
      std::max<uint64_t>((end - begin + slice_bytes_max - 1) / slice_bytes_max, 1);
  const uint64_t length =
      std::max(RoundUp((end - begin + count - 1) / count, kAlignmentBytes), kAlignmentBytes);
  uint64_t offset = begin;
  do {
    const uint64_t bytes = std::min(length, end - offset);
    slices.push_back(
        {.offset_bytes = offset, .length_bytes = static_cast<uint32_t>(bytes), .owner = owner});
    offset += length;
  } while (offset < end);
}

// The bytes between `begin` and `end` of these parts' line go to `owner`.
void AppendRun(std::vector<Slice>& slices, const Collective& collective,
               const std::vector<uint32_t>& parts, AggregatorIndex owner, uint64_t begin,
               uint64_t end, uint64_t slice_bytes_max) {
  const uint64_t part_bytes = collective.part_bytes();
  const uint64_t stride = collective.stride_bytes();
  for (uint64_t i = begin / stride; i < parts.size(); ++i) {
    const uint64_t part_begin = i * stride;
    if (i > 0 && part_begin >= end) break;
    const uint64_t from = std::max(begin, part_begin);
    const uint64_t to = std::min(end, part_begin + part_bytes);
    const uint64_t in_tensor = parts[i] * stride - part_begin;  // From the line to the tensor.
    if (from < to || (part_bytes == 0 && from == part_begin)) {
      AppendSlices(slices, owner, from + in_tensor, to + in_tensor, slice_bytes_max);
    }
  }
}

// Cuts the parts of a site into one run for each of its owners.
void AppendSite(std::vector<Slice>& slices, const View& view, TensorKey key,
                const Collective& collective, const Site& site, size_t run_count) {
  const uint64_t line_bytes = collective.needs_every_rank()
                                  ? site.parts.size() * collective.stride_bytes()
                                  : collective.part_bytes();
  const auto append = [&](AggregatorIndex owner, uint64_t begin, uint64_t end) {
    AppendRun(slices, collective, site.parts, owner, begin, end,
              SliceBytes(view, end - begin, run_count));
  };
  const std::vector<AggregatorIndex>& owners = site.owners;
  if (owners.empty()) return append(AggregatorIndex{0}, 0, line_bytes);
  const AggregatorIndex first = Select(view, key, owners);
  if (owners.size() == 1 || line_bytes < kStripeBytesMin * owners.size()) {
    return append(first, 0, line_bytes);
  }
  uint64_t weight_total = 0;
  for (const AggregatorIndex owner : owners) {
    weight_total += view.aggregators[owner.value()].weight;
  }
  const size_t first_at = std::find(owners.begin(), owners.end(), first) - owners.begin();
  uint64_t weight_before = 0;
  uint64_t begin = 0;
  for (size_t i = 0; i < owners.size(); ++i) {
    const AggregatorIndex owner = owners[(first_at + i) % owners.size()];
    weight_before += view.aggregators[owner.value()].weight;
    const auto exact = static_cast<unsigned __int128>(line_bytes) * weight_before / weight_total;
    const uint64_t end =
        i + 1 == owners.size()
            ? line_bytes
            : std::min(line_bytes, RoundUp(static_cast<uint64_t>(exact), kAlignmentBytes));
    if (end > begin) append(owner, begin, end);
    begin = end;
  }
}

// Stripes each site over its owners.
std::vector<Slice> Stripe(const View& view, TensorKey key, const Collective& collective,
                          const std::vector<Site>& sites) {
  std::vector<Slice> slices;
  size_t run_count = 0;
  for (const Site& site : sites) run_count += std::max<size_t>(site.owners.size(), 1);
  for (const Site& site : sites) AppendSite(slices, view, key, collective, site, run_count);
  std::sort(slices.begin(), slices.end(),
            [](const Slice& a, const Slice& b) { return a.offset_bytes < b.offset_bytes; });
  return slices;
}

// Deals the slices of all sites by a hash of their keys.
std::vector<Slice> DealByHash(const View& view, TensorKey key, const Collective& collective,
                              const std::vector<Site>& sites) {
  size_t part_count = 0;
  for (const Site& site : sites) part_count += site.parts.size();
  std::vector<const Site*> site_of_part(part_count);
  for (const Site& site : sites) {
    for (const uint32_t part : site.parts) site_of_part[part] = &site;
  }
  std::vector<Slice> slices;
  for (uint32_t part = 0; part < site_of_part.size(); ++part) {
    const std::vector<AggregatorIndex>& owners = site_of_part[part]->owners;
    std::vector<uint32_t> weights;
    for (const AggregatorIndex owner : owners) {
      weights.push_back(view.aggregators[owner.value()].weight);
    }
    const uint64_t begin = part * collective.stride_bytes();
    size_t place = slices.size();
    AppendSlices(slices, AggregatorIndex{0}, begin, begin + collective.part_bytes(),
                 view.slice_bytes_max);
    for (; place < slices.size(); ++place) {
      slices[place].owner = owners[OwnerOf(view.dealing, SliceKey(key, place), weights)];
    }
  }
  return slices;
}

}  // namespace

uint64_t PlacementDigest(const View& view) {
  return Fingerprint64(view.Digest(), kPlacementVersion);
}

AggregatorIndex PrimaryOwner(const View& view, TensorKey key) {
  return view.aggregators.empty() ? AggregatorIndex{0} : Select(view, key, AllOwners(view));
}

Placement::Placement(const View& view, TensorKey key, const Collective& collective,
                     const Group& group) {
  TALWEG_CHECK(view.slice_bytes_max % kAlignmentBytes == 0 && view.slice_bytes_max > 0);
  TALWEG_CHECK(!group.empty() || !collective.needs_every_rank());
  const std::vector<Site> sites = SitesOf(view, collective, group);
  if (view.dealing.rule == DealingRule::kStriped || view.aggregators.empty()) {
    slices_ = Stripe(view, key, collective, sites);
  } else {
    slices_ = DealByHash(view, key, collective, sites);
  }
  std::vector<uint64_t> slot_end(std::max<size_t>(view.aggregators.size(), 1));
  for (Slice& slice : slices_) {
    slice.slot_offset_bytes = slot_end[slice.owner.value()];
    slot_end[slice.owner.value()] += RoundUp(slice.length_bytes, kAlignmentBytes);
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

}  // namespace talweg::view
