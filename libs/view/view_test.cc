// SPDX-License-Identifier: Apache-2.0
#include "libs/view/view.h"

#include <set>

#include <catch2/catch.hpp>

#include "libs/view/participation.h"
#include "libs/view/view_fixture.h"

namespace talweg::view {
namespace {

using testing::CollectiveOf;
using testing::MakeView;

TEST_CASE("View: global ranks are counted over the nodes in their order", "[view]") {
  const View view = MakeView({2, 1, 4}, {1});
  CHECK(view.RankCount() == 7);
  CHECK(view.RankBase(MemberIndex{0}) == Rank{0});
  CHECK(view.RankBase(MemberIndex{2}) == Rank{3});
  CHECK(view.MemberOfRank(Rank{2}) == MemberIndex{1});
  CHECK(view.MemberOfRank(Rank{6}) == MemberIndex{2});
  CHECK(view.MemberOfRank(Rank{7}) == std::nullopt);
}

TEST_CASE("View: ranks of standbys have the numbers after all others", "[view]") {
  View view = MakeView({2, 1, 4}, {1});
  const uint64_t digest = view.Digest();
  view.members[0].standby = true;
  CHECK(view.Digest() != digest);
  CHECK(view.RankCount() == 5);
  CHECK(view.NumberCount() == 7);
  CHECK(view.HasStandby());
  CHECK(view.RankBase(MemberIndex{0}) == Rank{5});
  CHECK(view.RankBase(MemberIndex{1}) == Rank{0});
  CHECK(view.RankBase(MemberIndex{2}) == Rank{1});
  CHECK(view.MemberOfRank(Rank{0}) == MemberIndex{1});
  CHECK(view.MemberOfRank(Rank{4}) == MemberIndex{2});
  CHECK(view.MemberOfRank(Rank{5}) == MemberIndex{0});
  CHECK(view.MemberOfRank(Rank{7}) == std::nullopt);
}

TEST_CASE("Participation: a standby takes part in side tensors only", "[view]") {
  View view = MakeView({1, 1}, {1});
  view.members[1].standby = true;
  const Group both = {{NodeRank{0}, LocalRank{0}}, {NodeRank{1}, LocalRank{0}}};
  Collective sum = CollectiveOf("all_reduce", 4);
  const Participation all(view, sum, {}, std::nullopt);
  CHECK(all.rank_count() == 1);
  CHECK_FALSE(all.Includes(MemberIndex{1}));
  const Participation named(view, sum, both, std::nullopt);
  CHECK(named.IsPossible());
  CHECK_FALSE(named.Includes(MemberIndex{1}));
  const Participation gathered(view, CollectiveOf("all_gather", 4), both, std::nullopt);
  CHECK_FALSE(gathered.IsPossible());
  sum.side = true;
  CHECK(Participation(view, sum, both, std::nullopt).Includes(MemberIndex{1}));
  // The collective is impossible without any of its ranks.
  view.members.pop_back();
  CHECK_FALSE(Participation(view, sum, both, std::nullopt).IsPossible());
}

TEST_CASE("View: another incarnation of a node is not the member", "[view]") {
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
  other = view;
  other.members[1].host_id = "b";
  CHECK(other.Digest() != view.Digest());
  other = view;
  other.aggregators[0].host_id = "b";
  CHECK(other.Digest() != view.Digest());
}

TEST_CASE("View: the error says why a view is invalid", "[view]") {
  View view = MakeView({1, 2}, {1, 1});
  CHECK(view.Problem() == "");
  std::swap(view.members[0], view.members[1]);
  CHECK(view.Problem() != "");
  view = MakeView({0}, {});
  CHECK(view.Problem() == "node 0 has no ranks");
}

TEST_CASE("Participation: without a group, all ranks of the view take part", "[view]") {
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

TEST_CASE("View: the digest covers the dealing, and does not change for a striped view", "[view]") {
  View view = MakeView({2, 1}, {1, 3});
  CHECK(view.Digest() == 0x29b380750042e34c);
  std::set<uint64_t> digests = {view.Digest()};
  for (const char* text :
       {"naive", "djb2", "sdbm", "fingerprint:1", "fingerprint:2", "weighted:1", "weighted:2"}) {
    view.dealing = ParseDealing(text).value();
    CHECK(view.Problem().empty());
    CHECK(digests.insert(view.Digest()).second);
  }
  view.dealing = {.rule = DealingRule{99}};
  CHECK(view.Problem() == "its dealing is not valid: rule 99");
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

}  // namespace
}  // namespace talweg::view
