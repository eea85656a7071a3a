// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/next_view.h"

#include <catch2/catch.hpp>

#include "libs/membership/parts_fixture.h"

namespace talweg::membership {
namespace {

std::vector<uint32_t> NodesOf(const view::View& view) {
  std::vector<uint32_t> nodes;
  for (const view::ViewMember& member : view.members) nodes.push_back(member.id.node.value());
  return nodes;
}

TEST_CASE("NextView: a view has the members that are ready, and aggregators sorted by name",
          "[membership]") {
  PartsFixture f;
  f.AddMember(1, 11);
  f.AddMember(0, 10);
  f.AddMember(2, 12).stream.reset();
  f.AddAggregator(5, "b");
  f.AddAggregator(6, "a");
  f.job.epoch_floor = Epoch{3};
  const auto view = NextView(f.job, f.pool, true);
  REQUIRE(view);
  CHECK(view->epoch == Epoch{4});
  CHECK(NodesOf(*view) == std::vector<uint32_t>{0, 1});
  REQUIRE(view->aggregators.size() == 2);
  CHECK(view->aggregators[0].name == "a");
  // The epoch is above any that a scheduler with a newer store may have given.
  f.job.epoch_start = Epoch{100};
  CHECK(NextView(f.job, f.pool, true)->epoch == Epoch{101});
}

TEST_CASE("NextView: several members need an aggregator, one member does not", "[membership]") {
  PartsFixture f;
  CHECK_FALSE(NextView(f.job, f.pool, true));
  f.AddMember(0, 10);
  CHECK(NextView(f.job, f.pool, true));
  f.AddMember(1, 11);
  CHECK_FALSE(NextView(f.job, f.pool, true));
}

TEST_CASE("NextView: a draining aggregator stays if it is the only one", "[membership]") {
  PartsFixture f;
  f.AddMember(0, 10);
  f.AddMember(1, 11);
  LiveAggregator& draining = f.AddAggregator(5, "a");
  f.Run({0, 1});
  Turn turn(0);
  f.pool.Drain(draining, "", turn);
  CHECK(AggregatorsFor(f.job, f.pool).empty());
  REQUIRE(NextView(f.job, f.pool, false));
  CHECK(NextView(f.job, f.pool, false)->aggregators.size() == 1);
  f.AddAggregator(6, "b");
  REQUIRE(NextView(f.job, f.pool, false));
  CHECK(NextView(f.job, f.pool, false)->aggregators[0].name == "b");
}

TEST_CASE("NextView: joiners enter only with the others' consent", "[membership]") {
  PartsFixture f;
  f.AddMember(0, 10);
  f.AddAggregator(5, "a");
  f.Run({0});
  f.AddMember(1, 11);
  f.AddMember(2, 12).ranks.attached = false;
  CHECK(f.job.JoiningNodes() == std::vector{NodeRank{1}});
  CHECK(NodesOf(*NextView(f.job, f.pool, false)) == std::vector<uint32_t>{0});
  CHECK(NodesOf(*NextView(f.job, f.pool, true)) == std::vector<uint32_t>{0, 1});
}

TEST_CASE("NextView: a joiner that is not ready is a standby where everybody knows standbys",
          "[membership]") {
  PartsFixture f;
  LiveMember& first = f.AddMember(0, 10);
  LiveAggregator& aggregator = f.AddAggregator(5, "a");
  f.Run({0});
  f.AddMember(1, 11).ranks.ready = false;
  CHECK_FALSE(NextView(f.job, f.pool, true)->members[1].standby);
  first.ranks.ready = true;
  CHECK(NextView(f.job, f.pool, true)->members[1].standby);
  aggregator.knows_standbys = false;
  CHECK_FALSE(NextView(f.job, f.pool, true)->members[1].standby);
}

TEST_CASE("SparesOf: it finds an aggregator that came after the view was made", "[membership]") {
  PartsFixture f;
  f.AddMember(0, 10);
  f.AddAggregator(5, "a");
  CHECK(SparesOf(f.job, f.pool).empty());
  f.Run({0});
  f.AddAggregator(6, "b");
  const auto spares = SparesOf(f.job, f.pool);
  REQUIRE(spares.size() == 1);
  CHECK(spares[0].name == "b");
  CHECK(spares[0].enters_next_view);
}

}  // namespace
}  // namespace talweg::membership
