// SPDX-License-Identifier: Apache-2.0
#include "libs/view/placement.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/bytes.h"
#include "libs/base/fingerprint.h"
#include "libs/base/random.h"
#include "libs/view/participation.h"
#include "libs/view/view_fixture.h"

namespace talweg::view {
namespace {

using testing::AllRanks;
using testing::CollectiveOf;
using testing::MakeView;
using testing::OnHosts;

// Places a tensor of one part.
Placement PlaceBytes(const View& view, TensorKey key, uint64_t bytes) {
  return Placement(view, key, Collective::Of(DType::kU8, Op::kSum, bytes), {});
}

// Returns one of a few hosts, or an unknown one.
std::string SomeHost(Random& random) {
  const uint64_t host = random.Below(4);
  return host == 0 ? "" : std::to_string(host);
}

Dealing AnyDealing(Random& random) {
  constexpr const char* kTexts[] = {"striped",       "naive",    "djb2",      "sdbm",
                                    "fingerprint:5", "weighted", "weighted:1"};
  return ParseDealing(kTexts[random.Below(std::size(kTexts))]).value();
}

TEST_CASE("Placement: slices cover every tensor once, aligned and bounded", "[view]") {
  Random random(1);
  for (int trial = 0; trial < 3000; ++trial) {
    std::vector<uint32_t> weights(1 + random.Below(6));
    for (uint32_t& weight : weights) weight = 1 + random.Below(3);
    View view = MakeView({1}, weights);
    if (random.OneIn(2)) view.dealing = AnyDealing(random);
    const uint64_t bytes = 1 + random.Below(1ull << (1 + random.Below(25)));
    CAPTURE(trial, bytes);
    const Placement placement = PlaceBytes(view, TensorKey{random.Next()}, bytes);
    uint64_t end = 0;
    std::map<AggregatorIndex, uint64_t> slot_end;
    for (const Slice& slice : placement.slices()) {
      CHECK(slice.offset_bytes == end);
      CHECK(slice.offset_bytes % kCacheLineBytes == 0);
      CHECK(slice.length_bytes >= 1);
      CHECK(slice.length_bytes <= view.slice_bytes_max);
      CHECK(slice.owner.value() < weights.size());
      CHECK(slice.slot_offset_bytes == slot_end[slice.owner]);
      slot_end[slice.owner] += RoundUp(slice.length_bytes, kCacheLineBytes);
      end += slice.length_bytes;
    }
    CHECK(end == bytes);
    for (const auto& [owner, slot_bytes] : slot_end) {
      CHECK(placement.SlotBytes(owner) == slot_bytes);
    }
  }
}

TEST_CASE("Placement: no aggregator carries more than 5 % above its share of a model", "[view]") {
  // The tensor sizes of ResNet-50 in f32, by kind: convolutions, batch norms, the classifier.
  std::vector<uint64_t> sizes = {4 * 9408, 4 * 2048000, 4 * 1000};
  const struct {
    int blocks;
    uint64_t in, width, out;
  } kStages[] = {{3, 64, 64, 256}, {4, 256, 128, 512}, {6, 512, 256, 1024}, {3, 1024, 512, 2048}};
  for (const auto& stage : kStages) {
    for (int block = 0; block < stage.blocks; ++block) {
      const uint64_t in = block == 0 ? stage.in : stage.out;
      for (uint64_t count : {in * stage.width, 9 * stage.width * stage.width,
                             stage.width * stage.out, stage.width, stage.width, stage.out}) {
        sizes.push_back(4 * count);
      }
    }
  }
  for (const std::vector<uint32_t>& weights :
       {std::vector<uint32_t>{1, 1}, {1, 1, 1}, {1, 2}, {1, 1, 1, 1}, {3, 1, 2, 2, 1}}) {
    const View view = MakeView({1}, weights);
    std::vector<uint64_t> carried(weights.size());
    uint64_t total = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const Placement placement = PlaceBytes(view, TensorKey{Random(i).Next()}, sizes[i]);
      for (const Slice& slice : placement.slices()) {
        carried[slice.owner.value()] += slice.length_bytes;
      }
      total += sizes[i];
    }
    uint64_t weight_total = 0;
    for (const uint32_t weight : weights) weight_total += weight;
    for (size_t i = 0; i < weights.size(); ++i) {
      CAPTURE(i, weights.size());
      CHECK(carried[i] * weight_total <= total * weights[i] * 1.05);
    }
  }
}

TEST_CASE("Placement: a hash deals the slices that slice_bytes_max makes, each by its key",
          "[view]") {
  View view = MakeView({1}, {1, 9, 1});
  view.slice_bytes_max = 64 * kKiB;
  // Tensor 3's slices have the keys 196608 to 196617. naive deals them to the owners in turn,
  // beginning with 3 x 9973 modulo 3.
  view.dealing = ParseDealing("naive").value();
  const Placement naive = PlaceBytes(view, TensorKey{3}, 640 * kKiB);
  REQUIRE(naive.slices().size() == 10);
  for (uint32_t i = 0; i < 10; ++i) {
    CHECK(naive.slices()[i] == Slice{.offset_bytes = i * 64 * kKiB,
                                     .length_bytes = 64 * kKiB,
                                     .owner = AggregatorIndex{i % 3},
                                     .slot_offset_bytes = i / 3 * 64 * kKiB});
  }
  // Slice 2 has the key 196610. slice_hash_test computes the hashes.
  for (const auto& [text, hash] : {std::pair<const char*, uint64_t>{"djb2", 6951376374012},
                                   {"sdbm", 17050440749492477447u},
                                   {"fingerprint:7", 9967622192103435511u}}) {
    CAPTURE(text);
    view.dealing = ParseDealing(text).value();
    const Placement placement = PlaceBytes(view, TensorKey{3}, 640 * kKiB);
    CHECK(placement.slices()[2].owner.value() == hash % 3);
  }
  // The slice's point is 59 of 101. The second owner has points 9 to 90.
  view.dealing = ParseDealing("weighted").value();
  CHECK(PlaceBytes(view, TensorKey{3}, 640 * kKiB).slices()[2].owner == AggregatorIndex{1});
  // The primary owner does not depend on the dealing.
  const AggregatorIndex primary = PrimaryOwner(view, TensorKey{3});
  view.dealing = {};
  CHECK(PrimaryOwner(view, TensorKey{3}) == primary);
  // A small tensor is one slice, and is dealt like any other.
  view.dealing = ParseDealing("naive").value();
  for (uint32_t number = 0; number < 6; ++number) {
    const Placement small = PlaceBytes(view, TensorKey{number}, 100);
    REQUIRE(small.slices().size() == 1);
    CHECK(small.slices()[0].owner == AggregatorIndex{number % 3});
  }
}

TEST_CASE("Placement: under a hash, parts are still summed beside their ranks", "[view]") {
  View view = OnHosts(MakeView({1, 1}, {1, 1, 1}), {"x", "y"}, {"x", "y", "y"});
  view.slice_bytes_max = 64 * kKiB;
  view.dealing = ParseDealing("djb2").value();
  const Placement placement(view, TensorKey{7}, CollectiveOf("reduce_scatter", 4 * kMiB),
                            AllRanks(view));
  uint64_t slices_of_y[2] = {};
  for (const Slice& slice : placement.slices()) {
    const bool is_of_x = slice.offset_bytes < 4 * kMiB;
    CHECK((slice.owner == AggregatorIndex{0}) == is_of_x);
    if (!is_of_x) ++slices_of_y[slice.owner.value() - 1];
  }
  CHECK(slices_of_y[0] > 16);
  CHECK(slices_of_y[1] > 16);
}

TEST_CASE("Placement: every hash divides a model's bytes evenly", "[view]") {
  const struct {
    const char* dealing;
    double tolerance;
  } kCases[] = {
      {"naive", 0.05}, {"djb2", 0.15}, {"sdbm", 0.15}, {"fingerprint", 0.15}, {"weighted", 0.15}};
  for (const auto& [dealing, tolerance] : kCases) {
    for (const std::vector<uint32_t>& weights : {std::vector<uint32_t>{1, 1}, {2, 1, 1}}) {
      View view = MakeView({1}, weights);
      view.slice_bytes_max = 256 * kKiB;
      view.dealing = ParseDealing(dealing).value();
      std::vector<double> carried(weights.size());
      for (uint64_t tensor = 0; tensor < 50; ++tensor) {
        const Placement placement = PlaceBytes(view, TensorKey{Random(tensor).Next()}, 8 * kMiB);
        for (const Slice& slice : placement.slices()) {
          carried[slice.owner.value()] += slice.length_bytes;
        }
      }
      const double weight_total = weights.size() == 2 ? 2 : 4;
      for (size_t i = 0; i < weights.size(); ++i) {
        CAPTURE(dealing, i, weights.size());
        const double share = WeightsCount(view.dealing) ? weights[i] / weight_total
                                                        : 1.0 / static_cast<double>(weights.size());
        CHECK(carried[i] / (50.0 * 8 * kMiB) == Approx(share).epsilon(tolerance));
      }
    }
  }
}

TEST_CASE("Placement: a run has many slices, but none of only a few bytes", "[view]") {
  const auto longest = [](const View& view, uint64_t bytes) {
    uint32_t length = 0;
    const Placement placement = PlaceBytes(view, TensorKey{7}, bytes);
    for (const Slice& slice : placement.slices()) {
      length = std::max(length, slice.length_bytes);
    }
    return length;
  };
  View view = MakeView({1}, {1});
  view.slice_bytes_max = kMiB;
  CHECK(longest(view, 60 * kKiB) == 60 * kKiB);
  CHECK(longest(view, kMiB) == 64 * kKiB);
  CHECK(longest(view, 16 * kMiB) == 64 * kKiB);
  CHECK(longest(view, 32 * kMiB) == 128 * kKiB);
  CHECK(longest(view, 256 * kMiB) == kMiB);
  CHECK(longest(view, kGiB) == kMiB);
  View four = MakeView({1}, {1, 1, 1, 1});
  four.slice_bytes_max = kMiB;
  CHECK(longest(four, 100'000'000) <= 64 * kKiB);
  view.slice_bytes_max = 4 * kKiB;
  CHECK(longest(view, kMiB) == 4 * kKiB);
  // With many aggregators there are many slices anyway.
  view = MakeView({1}, std::vector<uint32_t>(2000, 1));
  view.slice_bytes_max = kMiB;
  CHECK(PlaceBytes(view, TensorKey{7}, kGiB).slices().size() <= 4 * 2000);
  // In a job of one node without aggregators nothing travels.
  view = MakeView({2}, {});
  view.slice_bytes_max = kMiB;
  CHECK(longest(view, 8 * kMiB) == kMiB);
}

TEST_CASE("Placement: it depends only on the view and the tensor", "[view]") {
  const View view = MakeView({1, 1}, {1, 1, 1});
  View later = view;
  later.epoch = Epoch{9};
  const TensorKey key{12345};
  CHECK(PlaceBytes(view, key, 5 * kMiB) == PlaceBytes(later, key, 5 * kMiB));
  CHECK(PrimaryOwner(view, key) == PrimaryOwner(later, key));
}

TEST_CASE("Placement: a change of the placement needs a new version", "[view]") {
  uint64_t fingerprint = 0;
  const auto add = [&](const View& view, TensorKey key, const Placement& placement) {
    fingerprint = Fingerprint64(fingerprint, PrimaryOwner(view, key).value());
    for (const Slice& slice : placement.slices()) {
      fingerprint = Fingerprint64(fingerprint, slice.offset_bytes);
      fingerprint = Fingerprint64(fingerprint, slice.length_bytes);
      fingerprint = Fingerprint64(fingerprint, slice.owner.value());
      fingerprint = Fingerprint64(fingerprint, slice.slot_offset_bytes);
    }
  };
  for (const std::vector<uint32_t>& weights :
       {std::vector<uint32_t>{1}, {1, 1, 1}, {3, 3, 8, 8}, std::vector<uint32_t>(32, 1)}) {
    const View view = MakeView({1, 2, 1}, weights);
    for (uint64_t bytes = 1; bytes < 20 * kGiB; bytes = 7 * bytes + 3) {
      const TensorKey key{bytes};
      add(view, key, PlaceBytes(view, key, bytes));
    }
  }
  // If one of these checks fails, increase kPlacementVersion and put the new value here.
  CHECK(kPlacementVersion == 3);
  CHECK(fingerprint == 0x5f42cc8d129af77d);
  for (const uint32_t rank_count : {1u, 2u}) {
    const View view = OnHosts(MakeView({1, rank_count, 1, 1}, {1, 1, 2, 1, 5}), {"a", "b", "c", ""},
                              {"a", "b", "b", "d", ""});
    for (const CollectiveRow& row : kCollectives) {
      for (uint64_t bytes = 1; bytes < kGiB; bytes = 5 * bytes + 3) {
        const TensorKey key{bytes};
        add(view, key, Placement(view, key, CollectiveOf(row.name, bytes), AllRanks(view)));
      }
    }
  }
  CHECK(fingerprint == 0xd5dddcce305b2424);
  CHECK(PlacementDigest(MakeView({1}, {1})) != MakeView({1}, {1}).Digest());
}

TEST_CASE("Placement: slices cover each part once, and each lies in one part", "[view]") {
  Random random(3);
  for (int repetition = 0; repetition < 300; ++repetition) {
    std::vector<uint32_t> rank_counts(1 + random.Below(4));
    for (uint32_t& count : rank_counts) count = static_cast<uint32_t>(1 + random.Below(2));
    View view = MakeView(rank_counts, std::vector<uint32_t>(1 + random.Below(4), 1));
    for (ViewMember& member : view.members) member.host_id = SomeHost(random);
    for (ViewAggregator& aggregator : view.aggregators) aggregator.host_id = SomeHost(random);
    view.slice_bytes_max = 4 * kKiB << random.Below(6);
    if (random.OneIn(2)) view.dealing = AnyDealing(random);
    const Group group = AllRanks(view);
    const auto rank_count = static_cast<uint32_t>(group.size());
    const uint64_t part_bytes = random.OneIn(5) ? 0 : random.Below(300 * kKiB);
    const Collective collective =
        CollectiveOf(kCollectives[random.Below(kCollectives.size())].name, part_bytes);
    const Placement placement(view, TensorKey{random.Next()}, collective, group);
    std::vector<uint64_t> covered(collective.part_count(rank_count));
    std::vector<bool> seen(covered.size());
    std::map<AggregatorIndex, uint64_t> slot_end;
    for (const Slice& slice : placement.slices()) {
      const uint32_t part = collective.part_at(slice.offset_bytes);
      REQUIRE(part < covered.size());
      REQUIRE(collective.offset_in_part(slice.offset_bytes) == covered[part]);
      covered[part] += slice.length_bytes;
      REQUIRE(covered[part] <= part_bytes);
      REQUIRE(slice.offset_bytes % kCacheLineBytes == 0);
      // No two contributions share a byte of a slot, and every byte belongs to a slice.
      REQUIRE(slice.slot_offset_bytes == slot_end[slice.owner]);
      slot_end[slice.owner] += RoundUp(slice.length_bytes, kCacheLineBytes);
      seen[part] = true;
    }
    for (size_t part = 0; part < covered.size(); ++part) {
      CAPTURE(part, part_bytes, collective.name());
      CHECK(covered[part] == part_bytes);
      CHECK(seen[part]);  // That holds for parts without bytes too.
    }
  }
}

TEST_CASE("Placement: a tensor without bytes still has an owner", "[view]") {
  const Placement placement = PlaceBytes(MakeView({1}, {1, 1}), TensorKey{5}, 0);
  REQUIRE(placement.slices().size() == 1);
  CHECK(placement.slices()[0].length_bytes == 0);
}

// --- Parts that are summed beside the rank that they belong to.

// Returns the host that sums each part, or "?" if several hosts do.
std::vector<std::string> HostsOfParts(const View& view, const Collective& collective,
                                      const Group& group) {
  const Placement placement(view, TensorKey{7}, collective, group);
  std::vector<std::string> hosts(collective.part_count(static_cast<uint32_t>(group.size())));
  for (const Slice& slice : placement.slices()) {
    std::string& host = hosts[collective.part_at(slice.offset_bytes)];
    const std::string& owner = view.aggregators[slice.owner.value()].host_id;
    host = host.empty() || host == owner ? owner : "?";
  }
  return hosts;
}

using Names = std::vector<std::string>;

TEST_CASE("Placement: a part is summed on the host of the rank that gets it", "[view]") {
  const View view = OnHosts(MakeView({1, 2, 1}, {1, 1, 1}), {"x", "y", "z"}, {"y", "z", "x"});
  // Ranks: 0 on x, 1 and 2 on y, 3 on z. y has half of the parts, which is one in (hosts - 1).
  const Group group = AllRanks(view);
  CHECK(HostsOfParts(view, CollectiveOf("reduce_scatter", kMiB), group) ==
        Names{"x", "y", "y", "z"});
  CHECK(HostsOfParts(view, CollectiveOf("scatter", kMiB), group) == Names{"x", "y", "y", "z"});
  CHECK(HostsOfParts(view, CollectiveOf("all_to_all", kMiB), {group[0], group[2], group[3]}) ==
        Names{"x", "y", "z", "x", "y", "z", "x", "y", "z"});
}

TEST_CASE("Placement: a part that the root gets is summed on the giver's host", "[view]") {
  const View view = OnHosts(MakeView({1, 1, 1}, {1, 1, 1}), {"x", "y", "z"}, {"y", "z", "x"});
  CHECK(HostsOfParts(view, CollectiveOf("gather", kMiB), AllRanks(view)) == Names{"x", "y", "z"});
}

TEST_CASE("Placement: a part whose getter has no aggregator beside it goes to the giver's host",
          "[view]") {
  const View view = OnHosts(MakeView({1, 1, 1}, {1, 1}), {"x", "y", "z"}, {"x", "y"});
  CHECK(HostsOfParts(view, CollectiveOf("all_to_all", kMiB), AllRanks(view)) ==
        Names{"x", "y", "x", "x", "y", "y", "x", "y", "?"});
}

TEST_CASE("Placement: parts without an aggregator beside them are striped over all", "[view]") {
  const View view = OnHosts(MakeView({1, 1, 1}, {1, 1, 2}), {"x", "y", "z"}, {"x", "y", "other"});
  const Collective collective = CollectiveOf("reduce_scatter", 4 * kMiB);
  CHECK(HostsOfParts(view, collective, AllRanks(view)) == Names{"x", "y", "?"});
  const Placement placement(view, TensorKey{7}, collective, AllRanks(view));
  CHECK(placement.SlotBytes(AggregatorIndex{0}) == 5 * kMiB);
  CHECK(placement.SlotBytes(AggregatorIndex{1}) == 5 * kMiB);
  CHECK(placement.SlotBytes(AggregatorIndex{2}) == 2 * kMiB);
}

TEST_CASE("Placement: the aggregators of a host share its parts by weight", "[view]") {
  const View view =
      OnHosts(MakeView({2, 1, 1}, {3, 1, 1, 1}), {"x", "y", "z"}, {"x", "y", "x", "z"});
  const Collective collective = CollectiveOf("reduce_scatter", 4 * kMiB);
  const Placement placement(view, TensorKey{7}, collective, AllRanks(view));
  CHECK(placement.SlotBytes(AggregatorIndex{0}) == 6 * kMiB);
  CHECK(placement.SlotBytes(AggregatorIndex{2}) == 2 * kMiB);
  CHECK(placement.SlotBytes(AggregatorIndex{1}) == 4 * kMiB);
  CHECK(placement.SlotBytes(AggregatorIndex{3}) == 4 * kMiB);
  // The parts are too small to be cut further.
  const Collective small = CollectiveOf("reduce_scatter", 64 * kKiB);
  const Placement whole(view, TensorKey{7}, small, AllRanks(view));
  CHECK(whole.SlotBytes(AggregatorIndex{0}) + whole.SlotBytes(AggregatorIndex{2}) == 128 * kKiB);
  CHECK(whole.Owns(AggregatorIndex{0}));
  CHECK(whole.Owns(AggregatorIndex{2}));
}

TEST_CASE("Placement: a rank is found by its node, whichever member holds the node's place",
          "[view]") {
  View view = OnHosts(MakeView({1, 1, 1}, {1, 1, 1}), {"x", "y", "z"}, {"x", "y", "z"});
  const Collective collective = CollectiveOf("reduce_scatter", kMiB);
  const Group group = {{NodeRank{1}, LocalRank{0}}, {NodeRank{2}, LocalRank{0}}};
  CHECK(HostsOfParts(view, collective, group) == Names{"y", "z"});
  view.members.erase(view.members.begin());  // Node 2 is now member 1.
  CHECK(HostsOfParts(view, collective, group) == Names{"y", "z"});
  view.members[1].host_id = "x";  // The node's agent was started again on another host.
  CHECK(HostsOfParts(view, collective, group) == Names{"y", "x"});
  view.members.erase(view.members.begin());  // Node 1 is gone.
  CHECK(HostsOfParts(view, collective, group) == Names{"?", "x"});
}

TEST_CASE("Placement: where hosts do not matter, a tensor is placed as if they were unknown",
          "[view]") {
  const auto same = [](const View& view, const Collective& collective) {
    const View unknown = OnHosts(view, Names(view.members.size()), Names(view.aggregators.size()));
    return Placement(view, TensorKey{7}, collective, AllRanks(view)) ==
           Placement(unknown, TensorKey{7}, collective, AllRanks(view));
  };
  const View view = OnHosts(MakeView({1, 1}, {1, 1}), {"x", "y"}, {"x", "y"});
  CHECK_FALSE(same(view, CollectiveOf("reduce_scatter", kMiB)));
  // The collective has one part for all ranks.
  for (const char* const name : {"all_reduce", "reduce", "broadcast"}) {
    CHECK(same(view, CollectiveOf(name, 8 * kMiB)));
  }
  // All ranks get every part.
  CHECK(same(view, CollectiveOf("all_gather", kMiB)));
  // One host has more than half of the parts, and there are two others.
  const View uneven = OnHosts(MakeView({3, 1, 1}, {1, 1, 1}), {"x", "y", "z"}, {"x", "y", "z"});
  CHECK(same(uneven, CollectiveOf("reduce_scatter", kMiB)));
  CHECK_FALSE(same(uneven, CollectiveOf("scatter", kMiB)));
  // These parts are too small to be striped.
  CHECK(same(view, CollectiveOf("reduce_scatter", 60 * kKiB)));
  // All aggregators are on one host, on hosts of their own, or on unknown hosts.
  for (const Names& hosts : {Names{"x", "x"}, Names{"u", "v"}, Names{"", ""}}) {
    CHECK(same(OnHosts(view, {"x", "y"}, hosts), CollectiveOf("reduce_scatter", kMiB)));
  }
  CHECK(same(OnHosts(view, {"", ""}, {"x", "y"}), CollectiveOf("reduce_scatter", kMiB)));
  CHECK(same(OnHosts(MakeView({1, 1}, {}), {"x", "y"}, {}), CollectiveOf("reduce_scatter", kMiB)));
}

TEST_CASE("Placement: a tensor never has many more slices than its parts and runs ask for",
          "[view]") {
  std::vector<uint32_t> ones(32, 1);
  Names hosts;
  for (size_t i = 0; i < ones.size(); ++i) hosts.push_back(std::to_string(i));
  Names half = hosts;
  for (size_t i = 0; i < half.size(); i += 2) half[i] += " has no member";
  View view = OnHosts(MakeView(ones, ones), hosts, half);
  view.slice_bytes_max = kMiB;
  for (const char* const name : {"reduce_scatter", "all_gather", "all_to_all"}) {
    const Collective collective = CollectiveOf(name, name[4] == 't' ? 5 * kMiB : 100 * kMiB);
    const uint32_t parts = collective.part_count(32);
    CHECK(Placement(view, TensorKey{7}, collective, AllRanks(view)).slices().size() <=
          parts + collective.bytes(32) / view.slice_bytes_max + 8192);
  }
}

// The bytes that leave and reach each host in a round.
struct Traffic {
  std::map<std::string, uint64_t> in;
  std::map<std::string, uint64_t> out;

  uint64_t Busiest() const {
    uint64_t most = 0;
    for (const auto* side : {&in, &out}) {
      for (const auto& [host, bytes] : *side) most = std::max(most, bytes);
    }
    return most;
  }
};

// Counts as docs/protocol.md says: a member sends once what its ranks give, and receives what they
// get, except for what it has given itself. `placed`: the view that places the tensor.
Traffic TrafficOf(const View& view, const View& placed, const Collective& collective,
                  std::optional<Place> root) {
  const Group group = AllRanks(view);
  const Participation participation(view, collective, group, root);
  Traffic traffic;
  const auto send = [&](const std::string& from, const std::string& to, uint64_t bytes) {
    if (from == to) return;
    traffic.out[from] += bytes;
    traffic.in[to] += bytes;
  };
  const Placement placement(placed, TensorKey{7}, collective, group);
  for (const Slice& slice : placement.slices()) {
    const uint32_t part = collective.part_at(slice.offset_bytes);
    const std::string& owner = view.aggregators[slice.owner.value()].host_id;
    for (uint32_t m = 0; m < view.members.size(); ++m) {
      const MemberIndex member{m};
      if (participation.IsPrivate(member, part)) continue;
      const bool gives = participation.GivingRanks(member, part) > 0;
      if (gives) send(view.members[m].host_id, owner, slice.length_bytes);
      if (!participation.Gets(member, part) || (gives && collective.copies())) continue;
      send(owner, view.members[m].host_id, slice.length_bytes);
    }
  }
  return traffic;
}

TEST_CASE("Placement: what a host gets crosses its link once if each host has an aggregator",
          "[view]") {
  for (const uint32_t n : {2u, 3u, 4u, 8u}) {
    View view = MakeView(std::vector<uint32_t>(n, 2), std::vector<uint32_t>(n, 1));
    for (uint32_t i = 0; i < n; ++i) {
      view.members[i].host_id = view.aggregators[i].host_id = std::to_string(i);
    }
    const uint64_t rank_count = 2 * n;
    const Place root{NodeRank{0}, LocalRank{0}};
    for (const char* const name :
         {"reduce_scatter", "all_gather", "all_to_all", "gather", "scatter"}) {
      CAPTURE(n, name);
      const bool is_all_to_all = std::string_view(name) == "all_to_all";
      // How many parts one rank gives to all.
      const uint64_t parts = is_all_to_all ? rank_count : 1;
      const Collective collective = CollectiveOf(name, kMiB / parts);
      CHECK(TrafficOf(view, view, collective, root).Busiest() <=
            collective.stride_bytes() * parts * (rank_count - rank_count / n));
    }
  }
}

// What docs/collectives.md says a node and an aggregator's host receive and send, with n nodes of a
// rank and k such hosts. A rank's larger end has n parts. With a root, the node is the busiest.
struct SeparateHosts {
  const char* name;
  double node_in, node_out, host_in, host_out;
};

TEST_CASE("Placement: links carry what the page says if aggregators have hosts of their own",
          "[view]") {
  for (const double n : {2, 3, 4}) {
    for (const uint32_t k : {1u, 2u, 3u}) {
      const double others = n - 1;
      for (const SeparateHosts& row :
           {SeparateHosts{"reduce_scatter", 1, n, n * n / k, n / k},
            SeparateHosts{"all_gather", others, 1, n / k, n * others / k},
            SeparateHosts{"all_to_all", others, others, n * others / k, n * others / k},
            SeparateHosts{"gather", others, 1, n / k, others / k},
            SeparateHosts{"scatter", 1, n, n / k, others / k},
            SeparateHosts{"all_reduce", n, n, n * n / k, n * n / k}}) {
        CAPTURE(row.name, n, k);
        View view =
            MakeView(std::vector<uint32_t>(static_cast<size_t>(n), 1), std::vector<uint32_t>(k, 1));
        for (size_t i = 0; i < view.members.size(); ++i) {
          view.members[i].host_id = "node" + std::to_string(i);
        }
        for (uint32_t i = 0; i < k; ++i) view.aggregators[i].host_id = std::to_string(i);
        const uint64_t part_bytes = 60 * kMiB;
        const uint64_t whole = std::string_view(row.name) == "all_reduce" ? view.members.size() : 1;
        const Collective collective = CollectiveOf(row.name, whole * part_bytes);
        const Traffic traffic = TrafficOf(view, view, collective, Place{NodeRank{0}, LocalRank{0}});
        const auto parts = [&](uint64_t bytes) {
          return static_cast<double>(bytes) / static_cast<double>(part_bytes);
        };
        // At the busiest node; on average of the aggregators' hosts.
        const auto check = [&](const std::map<std::string, uint64_t>& side, double at_node,
                               double at_host) {
          uint64_t most = 0;
          uint64_t sum = 0;
          for (const auto& [host, bytes] : side) {
            if (host.starts_with("node")) most = std::max(most, bytes);
            if (!host.starts_with("node")) sum += bytes;
          }
          CHECK(parts(most) == Approx(at_node).epsilon(0.01));
          CHECK(parts(sum) / k == Approx(at_host).epsilon(0.01));
        };
        check(traffic.in, row.node_in, row.host_in);
        check(traffic.out, row.node_out, row.host_out);
      }
    }
  }
}

TEST_CASE("Placement: hosts of unequal size load no link more than striping does", "[view]") {
  Random random(5);
  int better = 0;
  for (int repetition = 0; repetition < 2000; ++repetition) {
    const auto n = static_cast<uint32_t>(2 + random.Below(5));
    std::vector<uint32_t> rank_counts(n);
    for (uint32_t& count : rank_counts) count = static_cast<uint32_t>(1 + random.Below(6));
    View view = MakeView(rank_counts, std::vector<uint32_t>(n, 1));
    for (uint32_t i = 0; i < n; ++i) {
      view.members[i].host_id = view.aggregators[i].host_id = std::to_string(i);
    }
    const View striped = OnHosts(view, Names(n), Names(n));
    const CollectiveRow& row = kCollectives[random.Below(kCollectives.size())];
    const Collective collective = CollectiveOf(row.name, (1 + random.Below(8)) * kMiB / n);
    const Place root{NodeRank{static_cast<uint32_t>(random.Below(n))}, LocalRank{0}};
    const uint64_t bytes = TrafficOf(view, view, collective, root).Busiest();
    const uint64_t striped_bytes = TrafficOf(view, striped, collective, root).Busiest();
    CAPTURE(row.name, rank_counts, bytes, striped_bytes);
    // Runs end on cache lines, and rarely at the end of a part.
    CHECK(bytes <= striped_bytes + striped_bytes / 200);
    better += bytes < striped_bytes * 3 / 4 ? 1 : 0;
  }
  CHECK(better > 200);
}

}  // namespace
}  // namespace talweg::view
