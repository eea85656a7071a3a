// SPDX-License-Identifier: Apache-2.0
#include "libs/view/view.h"

#include <catch2/catch.hpp>

#include "libs/view/participation.h"
#include "libs/view/view_fixture.h"

namespace talweg {
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
  other = view;
  other.members[1].host_id = "b";
  CHECK(other.Digest() != view.Digest());
  other = view;
  other.aggregators[0].host_id = "b";
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

}  // namespace
}  // namespace talweg
