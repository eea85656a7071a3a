// SPDX-License-Identifier: Apache-2.0
#include "services/agent/agent_life.h"

#include <functional>
#include <string>

#include <catch2/catch.hpp>

namespace talweg::agent {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kDrain = 5 * kSecond;
constexpr int64_t kLinger = 30 * kSecond;

constexpr LifeSight kAttached{.any_attached = true};
constexpr LifeSight kNobody{};
constexpr LifeSight kGpusWork{.any_attached = true, .gpus_are_idle = false};
constexpr LifeSight kWordsWait{.words_have_left = false};

// An agent that has been brought to a state. What happens next is a row of the table in
// agent_life.h.
struct Life : AgentLife {
  explicit Life(bool is_alone = false) : AgentLife({.alone = is_alone, .drain_ns = kDrain}) {
    OnRankAttached();
  }
  static Life In(LifeState state, bool is_alone = false) {
    Life life(is_alone);
    switch (state) {
      case LifeState::kServing: break;
      case LifeState::kDraining: CHECK(life.OnStop("SIGTERM", 0)); break;
      case LifeState::kFailed: life.OnFailed("node 1 died", 0); break;
      case LifeState::kEnded:
      case LifeState::kLeaving:
        life.OnRanksDone();
        life.OnStop("SIGTERM", 0);
        CHECK(life.Advance(kWordsWait, 0) == LifeStep::kLeave);
        if (state == LifeState::kEnded) CHECK(life.Advance(kNobody, 0) == LifeStep::kEnd);
        break;
    }
    CHECK(life.state() == state);
    return life;
  }
};

TEST_CASE("AgentLife: an agent serves until its ranks are done", "[agent]") {
  Life life = Life::In(LifeState::kServing);
  CHECK(life.Advance(kNobody, 100 * kSecond) == LifeStep::kNone);  // Ranks may still come.
  CHECK_FALSE(life.NextNs(kNobody));
  life.OnRanksDone();
  CHECK(life.Advance(kGpusWork, kSecond) == LifeStep::kNone);
  CHECK(life.Advance(kAttached, kSecond) == LifeStep::kLeave);
  CHECK(life.state() == LifeState::kLeaving);
  CHECK(life.how_it_ends().finished);
  CHECK(life.how_it_ends().text == "all ranks are done");
}

TEST_CASE("AgentLife: an agent that is alone serves the next ranks", "[agent]") {
  Life life = Life::In(LifeState::kServing, true);
  life.OnRanksDone();
  CHECK(life.Advance(kGpusWork, 0) == LifeStep::kNone);
  CHECK(life.Advance(kNobody, 0) == LifeStep::kServeOthers);
  CHECK(life.state() == LifeState::kServing);
  CHECK(life.Advance(kNobody, 0) == LifeStep::kNone);  // This step comes once.
}

TEST_CASE("AgentLife: a stopped agent lets its ranks finish", "[agent]") {
  for (const bool is_alone : {false, true}) {
    CAPTURE(is_alone);
    Life life = Life::In(LifeState::kDraining, is_alone);
    CHECK(life.why_it_stops() == "SIGTERM");
    CHECK(life.NextNs(kAttached) == kDrain);
    CHECK(life.Advance(kAttached, kDrain - 1) == LifeStep::kNone);

    Life done = life;
    done.OnRanksDone();
    CHECK(done.Advance(kGpusWork, kSecond) == LifeStep::kNone);
    CHECK(done.Advance(kAttached, kSecond) == LifeStep::kLeave);
    CHECK(done.how_it_ends().finished);

    // Ranks of other nodes may wait for ranks that have gone without a goodbye.
    Life gone = life;
    CHECK(gone.Advance(kNobody, kSecond) == LifeStep::kLeave);
    CHECK(gone.state() == LifeState::kLeaving);
    CHECK(gone.how_it_ends().finished == is_alone);
    CHECK(gone.how_it_ends().text == "SIGTERM");
  }
}

TEST_CASE("AgentLife: ranks of a stopped agent that do not finish are failed", "[agent]") {
  Life life = Life::In(LifeState::kDraining);
  CHECK(life.Advance(kAttached, kDrain) == LifeStep::kFailTheRanks);
  CHECK(life.state() == LifeState::kDraining);
  CHECK(life.Advance(kAttached, kDrain) == LifeStep::kNone);  // This step comes once.
  life.OnFailed("the agent ends: SIGTERM", kDrain);
  CHECK(life.state() == LifeState::kFailed);
  CHECK(life.Advance(kAttached, kDrain) == LifeStep::kLeave);
  CHECK_FALSE(life.how_it_ends().finished);
  CHECK(life.how_it_ends().text == "the agent ends: SIGTERM");
}

TEST_CASE("AgentLife: a stop without a text gets a default reason", "[agent]") {
  Life life;
  CHECK(life.OnStop("", 0));
  CHECK(life.why_it_stops() == "stopped");
}

TEST_CASE("AgentLife: a failed job's agent stays while ranks hear of it", "[agent]") {
  for (const LifeState before : {LifeState::kServing, LifeState::kDraining}) {
    Life life = Life::In(before);
    life.OnFailed("node 1 died", 0);
    CHECK(life.state() == LifeState::kFailed);
    CHECK(life.Advance(kAttached, kDrain - 1) == LifeStep::kNone);
    // It leaves when the ranks have gone.
    CHECK(Life(life).Advance(kNobody, 1) == LifeStep::kLeave);
    // It also leaves when ranks stay for too long. A stopped agent has a limit of its own.
    const int64_t until_ns = before == LifeState::kServing ? kLinger : kDrain;
    CHECK(life.NextNs(kAttached) == until_ns);
    CHECK(life.Advance(kAttached, until_ns - 1) == LifeStep::kNone);
    CHECK(life.Advance(kAttached, until_ns) == LifeStep::kLeave);
    CHECK(life.state() == LifeState::kLeaving);
    CHECK_FALSE(life.how_it_ends().finished);
    CHECK(life.how_it_ends().text == "node 1 died");
  }
}

TEST_CASE("AgentLife: a job that fails before a rank has come is reported to ranks that come",
          "[agent]") {
  AgentLife life({.drain_ns = kDrain});
  life.OnFailed("cannot join", 0);
  CHECK(life.NextNs(kNobody) == kDrain);
  CHECK(life.Advance(kNobody, kDrain - 1) == LifeStep::kNone);
  AgentLife stopped = life;
  CHECK(life.Advance(kNobody, kDrain) == LifeStep::kLeave);
  // An agent that is told to stop waits for nobody.
  CHECK(stopped.OnStop("SIGTERM", kSecond));
  CHECK(stopped.state() == LifeState::kFailed);
  CHECK(stopped.Advance(kNobody, kSecond) == LifeStep::kLeave);
  CHECK(stopped.how_it_ends().text == "cannot join");
}

TEST_CASE("AgentLife: an agent that leaves ends when its last messages are sent", "[agent]") {
  Life life = Life::In(LifeState::kLeaving);
  CHECK(life.Leaves());
  CHECK(life.NextNs(kWordsWait) == kSecond / 2);
  CHECK(life.Advance(kWordsWait, kSecond / 2 - 1) == LifeStep::kNone);
  CHECK(Life(life).Advance(kNobody, 0) == LifeStep::kEnd);
  CHECK(life.Advance(kWordsWait, kSecond / 2) == LifeStep::kEnd);
  CHECK(life.state() == LifeState::kEnded);
  CHECK(life.Leaves());
  CHECK(life.Advance(kNobody, 100 * kSecond) == LifeStep::kNone);
  CHECK_FALSE(life.NextNs(kNobody));
}

TEST_CASE("AgentLife: every other event changes nothing", "[agent]") {
  struct Row {
    LifeState state;
    std::function<void(Life&)> event;
  };
  const auto stop = [](Life& life) { CHECK_FALSE(life.OnStop("again", 9 * kSecond)); };
  const auto fail = [](Life& life) { life.OnFailed("again", 9 * kSecond); };
  const auto done = [](Life& life) { life.OnRanksDone(); };
  const auto attach = [](Life& life) { life.OnRankAttached(); };
  const Row rows[] = {
      {LifeState::kServing, attach}, {LifeState::kDraining, attach}, {LifeState::kDraining, stop},
      {LifeState::kFailed, fail},    {LifeState::kFailed, done},     {LifeState::kFailed, attach},
      {LifeState::kLeaving, stop},   {LifeState::kLeaving, fail},    {LifeState::kLeaving, done},
      {LifeState::kLeaving, attach}, {LifeState::kEnded, stop},      {LifeState::kEnded, fail},
      {LifeState::kEnded, done},     {LifeState::kEnded, attach},
  };
  for (const Row& row : rows) {
    CAPTURE(LifeStateName(row.state));
    Life life = Life::In(row.state);
    const std::string why = life.why_it_stops();
    const LifeEnd end = life.how_it_ends();
    const auto next_ns = life.NextNs(kAttached);
    row.event(life);
    CHECK(life.state() == row.state);
    CHECK(life.why_it_stops() == why);
    CHECK(life.how_it_ends().text == end.text);
    CHECK(life.how_it_ends().finished == end.finished);
    CHECK(life.NextNs(kAttached) == next_ns);
    LifeSight sight = kWordsWait;
    sight.any_attached = true;
    CHECK(life.Advance(sight, 0) == LifeStep::kNone);
    CHECK(life.state() == row.state);
  }
}

}  // namespace
}  // namespace talweg::agent
