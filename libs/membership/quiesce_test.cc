// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/quiesce.h"

#include <catch2/catch.hpp>

#include "libs/membership/parts_fixture.h"

namespace talweg::membership {
namespace {

// Nodes 0 and 1 run, and node 2 waits to enter.
struct Stopping : PartsFixture {
  Stopping() {
    AddMember(0, 10);
    AddMember(1, 11);
    AddAggregator(5, "a");
    Run({0, 1});
    AddMember(2, 12);
  }
  bool Advance() {
    turn.emplace(0);
    return AdvanceQuiesce(job, pool, numbers, *turn);
  }
  void Answer(uint32_t node, QuiesceId quiesce, uint64_t step) {
    OnQuiesceAnswer(job, {NodeRank{node}, Incarnation{10 + node}}, quiesce, step, *turn);
  }

  Numbers numbers{{}, {}, 0};
  std::optional<Turn> turn;
};

TEST_CASE("Quiesce: members are asked for their step, then to stop after the latest",
          "[membership]") {
  Stopping f;
  CHECK_FALSE(f.Advance());
  REQUIRE(f.job.quiesce);
  const QuiesceId first = f.job.quiesce->id;
  CHECK(ToldMembers<Quiesce>(*f.turn) ==
        std::vector<std::pair<StreamId, Quiesce>>{{StreamId{100}, {first, {NodeRank{2}}, 0}},
                                                  {StreamId{101}, {first, {NodeRank{2}}, 0}}});
  f.Answer(0, first, 4);
  CHECK(f.turn->touched.empty());
  CHECK_FALSE(f.Advance());
  CHECK(f.turn->effects.empty());
  f.Answer(1, first, 6);
  CHECK(f.turn->touched == std::set{f.job.id});

  CHECK_FALSE(f.Advance());
  const QuiesceId second = f.job.quiesce->id;
  CHECK(second != first);
  CHECK(ToldMembers<Quiesce>(*f.turn)[0].second.step == 6);
  f.Answer(0, first, 4);  // This answer is late: its question is no longer asked.
  f.Answer(0, second, 6);
  f.Answer(0, second, 6);
  CHECK_FALSE(f.Advance());
  SECTION("All have ended that step") {
    f.Answer(1, second, 6);
    CHECK(f.Advance());
  }
  SECTION("A member knows rounds of a later step") {
    f.Answer(1, second, 7);
    CHECK_FALSE(f.Advance());
    CHECK(f.job.quiesce->id != second);
    CHECK(ToldMembers<Quiesce>(*f.turn)[0].second.step == 7);
    for (const uint32_t node : {0, 1}) f.Answer(node, f.job.quiesce->id, 7);
    CHECK(f.Advance());
  }
}

TEST_CASE("Quiesce: members that know no steps stop where they are", "[membership]") {
  Stopping f;
  f.Advance();
  f.Answer(0, f.job.quiesce->id, 0);
  f.Answer(1, f.job.quiesce->id, 0);
  f.Advance();
  CHECK(f.job.quiesce->step == 1);
}

TEST_CASE("Quiesce: ranks go on when the joiner is gone", "[membership]") {
  Stopping f;
  f.Advance();
  const QuiesceId id = f.job.quiesce->id;
  f.job.members.erase(NodeRank{2});
  CHECK_FALSE(f.Advance());
  CHECK_FALSE(f.job.quiesce);
  CHECK(ToldMembers<QuiesceCancelled>(*f.turn).size() == 2);
  CHECK(ToldMembers<QuiesceCancelled>(*f.turn)[0].second.id == id);
  CHECK_FALSE(f.Advance());
  CHECK(f.turn->effects.empty());
}

TEST_CASE("Quiesce: nobody is stopped while a member is missing or there is no aggregator",
          "[membership]") {
  Stopping f;
  SECTION("A member is lost") { f.job.members.erase(NodeRank{1}); }
  SECTION("There is no aggregator") {
    LiveAggregator* aggregator = nullptr;
    REQUIRE(f.pool.FindFor({Incarnation{5}}, aggregator).ok());
    f.turn.emplace(0);
    f.pool.Lose(*aggregator, "is gone", *f.turn);
  }
  CHECK_FALSE(f.Advance());
  CHECK_FALSE(f.job.quiesce);
}

}  // namespace
}  // namespace talweg::membership
