// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/node_life.h"

#include <string>

#include <catch2/catch.hpp>

namespace talweg::cli {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr RestartPolicy kTwice = {.count_max = 2,
                                  .window_ns = 60 * kSecond,
                                  .pause_min_ns = kSecond,
                                  .pause_max_ns = 3 * kSecond};

TEST_CASE("Restarts: a window allows so many, each after a longer pause", "[cli]") {
  Restarts restarts({.count_max = 3,
                     .window_ns = 100 * kSecond,
                     .pause_min_ns = kSecond,
                     .pause_max_ns = 3 * kSecond});
  CHECK(restarts.OnFailure(0) == 1 * kSecond);
  CHECK(restarts.OnFailure(10 * kSecond) == 12 * kSecond);
  // A pause of four seconds would be too long.
  CHECK(restarts.OnFailure(20 * kSecond) == 23 * kSecond);
  CHECK(restarts.count(20 * kSecond) == 3);
  CHECK(restarts.OnFailure(99 * kSecond) == std::nullopt);
  // The first restart is out of the window.
  CHECK(restarts.count(100 * kSecond) == 2);
  CHECK(restarts.OnFailure(100 * kSecond) == 103 * kSecond);
  CHECK(restarts.OnFailure(101 * kSecond) == std::nullopt);
}

TEST_CASE("Restarts: there are none where none are allowed", "[cli]") {
  Restarts restarts(RestartPolicy{});
  CHECK(restarts.OnFailure(0) == std::nullopt);
}

// A node whose ranks are at work for the first time.
NodeLife Working(uint32_t ranks, const RestartPolicy& policy) {
  NodeLife life(ranks, policy);
  REQUIRE(life.Start() == NodeAction::kStartAgent);
  // The first ranks start when the whole run is ready.
  REQUIRE(life.OnAgentServes() == NodeAction::kNone);
  REQUIRE(life.StartRanks() == NodeAction::kStartRanks);
  REQUIRE(life.state() == NodeState::kWorking);
  return life;
}

TEST_CASE("NodeLife: a node is done when all ranks have ended well, whenever its agent ends",
          "[cli]") {
  for (const bool agent_first : {true, false}) {
    NodeLife life = Working(2, RestartPolicy{});
    CHECK(life.OnRankEnds(true, 0) == NodeAction::kNone);
    if (agent_first) CHECK(life.OnAgentEnds(true, 0) == NodeAction::kAwaitNeed);
    CHECK(life.OnRankEnds(true, 0) == NodeAction::kFinish);
    if (!agent_first) CHECK(life.OnAgentEnds(true, 0) == NodeAction::kNone);
    CHECK(life.over());
    CHECK_FALSE(life.lost());
    // No rank needed another agent.
    CHECK(life.OnTime() == NodeAction::kNone);
    CHECK(life.Fail(0) == NodeAction::kNone);
    CHECK(life.state() == NodeState::kDone);
  }
}

TEST_CASE("NodeLife: ranks that go on after their job get another agent", "[cli]") {
  NodeLife life = Working(1, RestartPolicy{});
  for (int job = 0; job < 3; ++job) {
    CHECK(life.OnAgentEnds(true, 0) == NodeAction::kAwaitNeed);
    CHECK(life.state() == NodeState::kLeft);
    // This holds however long the ranks take to end.
    CHECK(life.OnTime(false) == NodeAction::kAwaitNeed);
    CHECK(life.OnTime(false) == NodeAction::kAwaitNeed);
    CHECK(life.state() == NodeState::kLeft);
    CHECK(life.OnTime(true) == NodeAction::kStartAgent);
    CHECK(life.state() == NodeState::kRenewing);
    CHECK(life.OnAgentServes() == NodeAction::kNone);  // The ranks are there.
    CHECK(life.state() == NodeState::kWorking);
  }
  CHECK(life.OnRankEnds(true, 0) == NodeAction::kFinish);
}

TEST_CASE("NodeLife: a rank that fails ends its whole node, which starts again", "[cli]") {
  NodeLife life = Working(2, kTwice);
  CHECK_FALSE(life.has_failed());
  CHECK(life.OnRankEnds(false, 10 * kSecond) == NodeAction::kEndAll);
  CHECK(life.state() == NodeState::kEnding);
  CHECK_FALSE(life.over());
  CHECK(life.OnAgentEnds(false, 11 * kSecond) == NodeAction::kNone);
  CHECK(life.Fail(11 * kSecond) == NodeAction::kNone);  // The node has already failed.
  // The other rank was told to end, so its exit status does not count.
  CHECK(life.OnRankEnds(true, 12 * kSecond) == NodeAction::kPause);
  CHECK(life.state() == NodeState::kPausing);
  CHECK(life.start_at_ns() == 11 * kSecond);
  CHECK(life.OnTime() == NodeAction::kStartAgent);
  // Now the node does not wait for the rest of the run.
  CHECK(life.OnAgentServes() == NodeAction::kStartRanks);
  CHECK(life.state() == NodeState::kWorking);
  CHECK(life.has_failed());
  CHECK(life.restarts().count(12 * kSecond) == 1);
}

TEST_CASE("NodeLife: a node that fails too often is lost before all its processes have ended",
          "[cli]") {
  NodeLife life = Working(1, kTwice);
  for (int time = 0; time < 2; ++time) {
    CHECK(life.OnAgentEnds(false, time) == NodeAction::kEndAll);
    CHECK(life.OnRankEnds(false, time) == NodeAction::kPause);
    CHECK(life.OnTime() == NodeAction::kStartAgent);
    CHECK(life.OnAgentServes() == NodeAction::kStartRanks);
  }
  CHECK(life.OnRankEnds(false, 2) == NodeAction::kEndAll);
  CHECK(life.lost());
  CHECK(life.over());
  CHECK(life.OnAgentEnds(true, 2) == NodeAction::kForget);
  CHECK(life.state() == NodeState::kLost);
  CHECK(life.OnTime() == NodeAction::kNone);
}

TEST_CASE("NodeLife: ranks that outlive their agent get another one", "[cli]") {
  NodeLife life = Working(2, kTwice);
  CHECK(life.OnAgentEnds(false, 10 * kSecond, true) == NodeAction::kPause);
  CHECK(life.state() == NodeState::kBereft);
  CHECK(life.works());
  CHECK(life.has_failed());
  CHECK(life.start_at_ns() == 11 * kSecond);
  CHECK(life.OnTime() == NodeAction::kStartAgent);
  CHECK(life.state() == NodeState::kRenewing);
  SECTION("The other agent serves") {
    CHECK(life.OnAgentServes() == NodeAction::kNone);  // The ranks are there.
    CHECK(life.state() == NodeState::kWorking);
    CHECK(life.OnRankEnds(true, 12 * kSecond) == NodeAction::kNone);
    CHECK(life.OnRankEnds(true, 12 * kSecond) == NodeAction::kFinish);
  }
  SECTION("The other agents fail too, until that is too often") {
    CHECK(life.OnAgentEnds(false, 12 * kSecond, true) == NodeAction::kPause);
    CHECK(life.start_at_ns() == 14 * kSecond);
    CHECK(life.OnTime() == NodeAction::kStartAgent);
    CHECK(life.OnAgentEnds(false, 15 * kSecond, true) == NodeAction::kEndAll);
    CHECK(life.lost());
  }
  SECTION("A rank fails meanwhile") {
    CHECK(life.OnRankEnds(false, 12 * kSecond) == NodeAction::kEndAll);
    CHECK(life.state() == NodeState::kEnding);
    CHECK_FALSE(life.lost());
  }
}

TEST_CASE("NodeLife: a node starts again when a rank fails while it waits for an agent", "[cli]") {
  NodeLife life = Working(1, kTwice);
  CHECK(life.OnAgentEnds(false, 0, true) == NodeAction::kPause);
  // No process of the node is left to be ended.
  CHECK(life.OnRankEnds(false, 0) == NodeAction::kPause);
  CHECK(life.state() == NodeState::kPausing);
  CHECK(life.OnTime() == NodeAction::kStartAgent);
  CHECK(life.OnAgentServes() == NodeAction::kStartRanks);
}

TEST_CASE("NodeLife: an agent that fails before its ranks are there starts again", "[cli]") {
  NodeLife life(2, kTwice);
  life.Start();
  SECTION("It fails before it serves") { CHECK(life.state() == NodeState::kStarting); }
  SECTION("It fails after it serves") { life.OnAgentServes(); }
  CHECK(life.OnAgentEnds(false, 0) == NodeAction::kPause);  // No process is left to be ended.
  CHECK(life.OnTime() == NodeAction::kStartAgent);
  // The node has not worked yet: its first ranks wait for the run.
  CHECK(life.OnAgentServes() == NodeAction::kNone);
}

TEST_CASE("NodeLife: a second agent that fails is the node's failure", "[cli]") {
  NodeLife life = Working(1, RestartPolicy{});
  life.OnAgentEnds(true, 0);
  life.OnTime(true);
  CHECK(life.OnAgentEnds(false, 0) == NodeAction::kEndAll);
  CHECK(life.OnRankEnds(false, 0) == NodeAction::kForget);
}

}  // namespace
}  // namespace talweg::cli
