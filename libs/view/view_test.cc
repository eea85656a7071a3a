// SPDX-License-Identifier: Apache-2.0
#include "libs/view/view.h"

#include <map>

#include <catch2/catch.hpp>

#include "libs/base/bytes.h"
#include "libs/base/fingerprint.h"
#include "libs/base/random.h"
#include "libs/view/participation.h"
#include "libs/view/placement.h"

namespace talweg {
namespace {

View MakeView(std::vector<uint32_t> rank_counts, std::vector<uint32_t> weights) {
  View view{.job = JobId{1}, .epoch = Epoch{1}};
  for (uint32_t i = 0; i < rank_counts.size(); ++i) {
    view.members.push_back(
        {.id = {NodeRank{i}, Incarnation{100 + i}}, .rank_count = rank_counts[i], .name = "n"});
  }
  for (uint32_t i = 0; i < weights.size(); ++i) {
    view.aggregators.push_back({.incarnation = Incarnation{200 + i},
                                .name = "a" + std::to_string(i),
                                .weight = weights[i]});
  }
  return view;
}

// A tensor of one part.
Placement PlaceBytes(const View& view, TensorKey key, uint64_t bytes) {
  return Placement(view, key, Collective::Of(DType::kU8, Op::kSum, bytes), 1);
}

Collective CollectiveOf(std::string_view name, uint64_t element_count) {
  for (const CollectiveRow& row : kCollectives) {
    if (row.name != name) continue;
    return {.dtype = DType::kU8,
            .op = row.gives == Share::kWhole ? Op::kSum : Op::kCopy,
            .gives = row.gives,
            .gets = row.gets,
            .element_count = element_count};
  }
  return {};
}

TEST_CASE("View: global ranks are counted over the nodes in their order", "[view]") {
  const View view = MakeView({2, 1, 4}, {1});
  CHECK(view.RankCount() == 7);
  CHECK(view.RankBase(MemberIndex{0}) == Rank{0});
  CHECK(view.RankBase(MemberIndex{2}) == Rank{3});
  CHECK(view.MemberOfRank(Rank{2}) == MemberIndex{1});
  CHECK(view.MemberOfRank(Rank{6}) == MemberIndex{2});
  CHECK(view.MemberOfRank(Rank{7}) == std::nullopt);
}

TEST_CASE("View: another life of a node is not the member", "[view]") {
  const View view = MakeView({1, 1}, {1});
  CHECK(view.IndexOf(MemberIdentity{NodeRank{1}, Incarnation{101}}) == MemberIndex{1});
  CHECK(view.IndexOf(MemberIdentity{NodeRank{1}, Incarnation{7}}) == std::nullopt);
}

TEST_CASE("View: the digest tells views of one epoch apart", "[view]") {
  const View view = MakeView({1, 2}, {1, 1});
  View other = view;
  CHECK(other.Digest() == view.Digest());
  other.members[1].rank_count = 3;
  CHECK(other.Digest() != view.Digest());
  other = view;
  other.aggregators[0].weight = 2;
  CHECK(other.Digest() != view.Digest());
}

TEST_CASE("View: what is no view is named", "[view]") {
  View view = MakeView({1, 2}, {1, 1});
  CHECK(view.Problem() == "");
  std::swap(view.members[0], view.members[1]);
  CHECK(view.Problem() != "");
  view = MakeView({0}, {});
  CHECK(view.Problem() == "node 0 has no ranks");
}

TEST_CASE("Placement: slices cover every tensor once, aligned and bounded", "[view]") {
  Random random(1);
  for (int trial = 0; trial < 3000; ++trial) {
    std::vector<uint32_t> weights(1 + random.Below(6));
    for (uint32_t& weight : weights) weight = 1 + random.Below(3);
    const View view = MakeView({1}, weights);
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

TEST_CASE("Placement: no aggregator carries 5 % above its share of a model", "[view]") {
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

TEST_CASE("Placement: a run is many slices, but not of a few bytes each", "[view]") {
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
  // Alone nothing travels.
  view = MakeView({2}, {});
  view.slice_bytes_max = kMiB;
  CHECK(longest(view, 8 * kMiB) == kMiB);
}

TEST_CASE("Placement: hangs on nothing but the view and the tensor", "[view]") {
  const View view = MakeView({1, 1}, {1, 1, 1});
  View later = view;
  later.epoch = Epoch{9};
  const TensorKey key{12345};
  CHECK(PlaceBytes(view, key, 5 * kMiB) == PlaceBytes(later, key, 5 * kMiB));
  CHECK(PrimaryOwner(view, key) == PrimaryOwner(later, key));
}

TEST_CASE("Placement: another placement is another version", "[view]") {
  uint64_t fingerprint = 0;
  for (const std::vector<uint32_t>& weights :
       {std::vector<uint32_t>{1}, {1, 1, 1}, {3, 3, 8, 8}, std::vector<uint32_t>(32, 1)}) {
    const View view = MakeView({1, 2, 1}, weights);
    for (uint64_t bytes = 1; bytes < 20 * kGiB; bytes = 7 * bytes + 3) {
      const TensorKey key{bytes};
      fingerprint = Fingerprint64(fingerprint, PrimaryOwner(view, key).value());
      const Placement placement = PlaceBytes(view, key, bytes);
      for (const Slice& slice : placement.slices()) {
        fingerprint = Fingerprint64(fingerprint, slice.offset_bytes);
        fingerprint = Fingerprint64(fingerprint, slice.length_bytes);
        fingerprint = Fingerprint64(fingerprint, slice.owner.value());
        fingerprint = Fingerprint64(fingerprint, slice.slot_offset_bytes);
      }
    }
  }
  // Is it another one? Then count kPlacementVersion up, and put it here.
  CHECK(kPlacementVersion == 2);
  CHECK(fingerprint == 0x5f42cc8d129af77d);
  CHECK(PlacementDigest(MakeView({1}, {1})) != MakeView({1}, {1}).Digest());
}

TEST_CASE("Placement: slices cover each part once, and lie in one part each", "[view]") {
  Random random(3);
  for (int repetition = 0; repetition < 300; ++repetition) {
    View view = MakeView({1}, std::vector<uint32_t>(1 + random.Below(4), 1));
    view.slice_bytes_max = 4 * kKiB << random.Below(6);
    const uint32_t rank_count = static_cast<uint32_t>(1 + random.Below(5));
    const uint64_t part_bytes = random.OneIn(5) ? 0 : random.Below(300 * kKiB);
    const Collective collective =
        CollectiveOf(kCollectives[random.Below(kCollectives.size())].name, part_bytes);
    const Placement placement(view, TensorKey{random.Next()}, collective, rank_count);
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
      REQUIRE(slice.slot_offset_bytes >= slot_end[slice.owner]);
      slot_end[slice.owner] = slice.slot_offset_bytes + slice.length_bytes;
      seen[part] = true;
    }
    for (size_t part = 0; part < covered.size(); ++part) {
      CAPTURE(part, part_bytes, collective.name());
      CHECK(covered[part] == part_bytes);
      CHECK(seen[part]);  // Also where there are no bytes.
    }
  }
}

TEST_CASE("Participation: all ranks of the view by default", "[view]") {
  const View view = MakeView({2, 1}, {1});
  const Participation sum(view, CollectiveOf("all_reduce", 4), {}, std::nullopt);
  CHECK(sum.IsPossible());
  CHECK(sum.rank_count() == 3);
  CHECK(sum.GivingRanks(MemberIndex{0}, 0) == 2);
  CHECK(sum.GivingRanks(MemberIndex{1}, 0) == 1);
  CHECK(sum.Gets(MemberIndex{1}, 0));
  CHECK(sum.TakerCount(0) == 2);

  const Place root{view.members[1].id.node, LocalRank{0}};
  const Participation broadcast(view, CollectiveOf("broadcast", 4), {}, root);
  CHECK(broadcast.Source(0) == MemberIndex{1});
  CHECK(broadcast.GivingRanks(MemberIndex{0}, 0) == 0);
  CHECK(broadcast.Gets(MemberIndex{0}, 0));
  CHECK_FALSE(Participation(view, CollectiveOf("broadcast", 4), {}, std::nullopt).IsPossible());
}

TEST_CASE("Participation: parts belong to the ranks of a group", "[view]") {
  const View view = MakeView({2, 1, 2}, {1});
  const auto place = [&](size_t member, uint32_t local_rank) {
    return Place{view.members[member].id.node, LocalRank{local_rank}};
  };
  const Group group = {place(0, 1), place(2, 0), place(2, 1)};
  const Participation gather(view, CollectiveOf("all_gather", 4), group, std::nullopt);
  CHECK(gather.IsPossible());
  CHECK_FALSE(gather.Includes(MemberIndex{1}));
  CHECK(gather.Source(0) == MemberIndex{0});
  CHECK(gather.Source(2) == MemberIndex{2});
  CHECK(gather.TakerCount(1) == 2);
  CHECK(gather.RanksOf(MemberIndex{2})[1].local_rank == LocalRank{1});

  const Participation scatter(view, CollectiveOf("reduce_scatter", 4), group, std::nullopt);
  CHECK(scatter.GivingRanks(MemberIndex{2}, 0) == 2);
  CHECK(scatter.Gets(MemberIndex{0}, 0));
  CHECK_FALSE(scatter.Gets(MemberIndex{2}, 0));

  const Participation exchange(view, CollectiveOf("all_to_all", 4), group, std::nullopt);
  // Part 1 goes from rank 0 to rank 1, part 5 from rank 1 to rank 2, both on member 2.
  CHECK(exchange.TakerCount(1) == 2);
  CHECK(exchange.IsPrivate(MemberIndex{2}, 5));
  CHECK_FALSE(exchange.TakesPart(MemberIndex{0}, 5));
}

TEST_CASE("Participation: what a lost rank means depends on the collective", "[view]") {
  const View view = MakeView({1, 1}, {1});
  const Group group = {{view.members[0].id.node, LocalRank{0}},
                       {NodeRank{view.members[1].id.node.value() + 7}, LocalRank{0}}};
  const Participation sum(view, CollectiveOf("all_reduce", 4), group, std::nullopt);
  CHECK(sum.IsPossible());
  CHECK(sum.rank_count() == 2);
  CHECK(sum.TakerCount(0) == 1);
  CHECK_FALSE(Participation(view, CollectiveOf("all_gather", 4), group, std::nullopt).IsPossible());
  CHECK_FALSE(Participation(view, CollectiveOf("reduce", 4), group, group[1]).IsPossible());
  CHECK(Participation(view, CollectiveOf("reduce", 4), group, group[0]).IsPossible());
}

TEST_CASE("Placement: a tensor without bytes still has an owner", "[view]") {
  const Placement placement = PlaceBytes(MakeView({1}, {1, 1}), TensorKey{5}, 0);
  REQUIRE(placement.slices().size() == 1);
  CHECK(placement.slices()[0].length_bytes == 0);
}

}  // namespace
}  // namespace talweg
