// SPDX-License-Identifier: Apache-2.0
// Rounds that go on without late ranks.
#include <catch2/catch.hpp>

#include "libs/pipeline/agent_core_fixture.h"

namespace talweg::pipeline {
namespace {

using testing::Key;
using testing::MakeView;
using testing::Spec;

constexpr int64_t kPatienceNs = 20'000'000;

struct Fixture : testing::Fixture {
  explicit Fixture(uint32_t rank_count = 2) : testing::Fixture(0, rank_count) {}

  void StartPatient(const view::View& view) {
    Start(view);
    TensorSpec spec = Spec("w", 1024);
    spec.collective.patience_ms = 20;
    Open(spec);
  }
  // The owner says that half of a round's members are there, and this one is not.
  Effects Hurry(uint64_t round) {
    return From<wire::Waiting>(
        0, wire::FrameType::kWaiting,
        {{.key = Key("w"), .round = Round{round}, .missing_nodes = {0}, .absent_ns = {0}}});
  }
  Effects AfterPatience() {
    now_ns += kPatienceNs;
    Effects effects = Tick();
    for (Effect& effect : Flush()) effects.push_back(std::move(effect));
    return effects;
  }
  // Round 1 is under way when the view comes; the owners decide about it.
  void Recover(const view::View& view, wire::Verdict verdict) {
    OnView(view);
    AgreeTo(AnswerAll());
    AgreeTo(Flush());
    Decide("w", verdict, 1);
  }
  // What is combined for the node's contribution, and that contribution's result.
  Effects Finish(const Effects& effects) {
    const auto reductions = Of<ReduceSlice>(effects);
    REQUIRE(reductions.size() == 1);
    Reduced(reductions[0].ticket);
    return Results(Flush(), 4);
  }
};

TEST_CASE("AgentCore: a round goes on without a late rank when patience is over", "[pipeline]") {
  Fixture f;
  f.StartPatient(MakeView(1, {2, 2}, 1));
  f.Push(0, 0, 1);
  f.Hurry(1);
  f.now_ns += kPatienceNs - 1;
  CHECK(f.Of<ReduceSlice>(f.Tick()).empty());
  CHECK(f.Of<ReduceSlice>(f.Flush()).empty());
  const Effects closed = f.AfterPatience();
  const auto reductions = f.Of<ReduceSlice>(closed);
  REQUIRE(reductions.size() == 1);
  CHECK(reductions[0].inputs == std::vector{LocalRank{0}});
  CHECK(reductions[0].rank_count == 2);  // An average still divides by all.

  // It comes before the round is over, and too late.
  CHECK(f.Of<FailRank>(f.Push(1, 0, 1)).empty());
  f.Reduced(reductions[0].ticket);
  const Effects sent = f.Flush();
  REQUIRE(f.Entries<wire::Contribute>(sent).size() == 1);
  CHECK(f.Entries<wire::Contribute>(sent)[0].rank_count == 2);
  const auto complete = f.Of<CompleteRound>(f.Results(sent, 4));
  REQUIRE(complete.size() == 1);
  CHECK(complete[0].left_out == std::vector{false, true});
  CHECK(complete[0].ranks_summed == 4);

  // In the next round all are in time.
  f.Push(0, 0, 2);
  f.Push(1, 0, 2);
  const auto next = f.Of<CompleteRound>(f.Finish(f.Flush()));
  REQUIRE(next.size() == 1);
  CHECK(next[0].left_out.empty());
}

TEST_CASE("AgentCore: a node all of whose ranks are late contributes nothing, at full length",
          "[pipeline]") {
  Fixture f;
  f.StartPatient(MakeView(1, {2, 2}, 1));
  f.Hurry(1);
  const auto reductions = f.Of<ReduceSlice>(f.AfterPatience());
  REQUIRE(reductions.size() == 1);
  CHECK(reductions[0].inputs.empty());
  CHECK(reductions[0].target.length_bytes == 4096);
  f.Reduced(reductions[0].ticket);
  const auto complete = f.Of<CompleteRound>(f.Results(f.Flush(), 4));
  REQUIRE(complete.size() == 1);
  CHECK(complete[0].left_out == std::vector{true, true});
}

TEST_CASE("AgentCore: a rank is at most one round behind", "[pipeline]") {
  Fixture f;
  f.StartPatient(MakeView(1, {2, 2}, 1));
  f.Push(0, 0, 1);
  f.Hurry(1);
  f.Finish(f.AfterPatience());
  f.Push(0, 0, 2);
  f.Hurry(2);
  CHECK(f.Of<ReduceSlice>(f.AfterPatience()).empty());
  // It hears again how the round ended that it pushes now.
  const Effects late = f.Push(1, 0, 1);
  const auto told = f.Of<CompleteRound>(late);
  REQUIRE(told.size() == 1);
  CHECK(told[0].round == Round{1});
  CHECK(told[0].left_out == std::vector{false, true});
  // From now on it may be left out of the next. Since the owner's word the patience is over.
  f.Flush();
  f.Tick();
  const auto reductions = f.Of<ReduceSlice>(f.Flush());
  REQUIRE(reductions.size() == 1);
  CHECK(reductions[0].target.round == Round{2});
  CHECK(f.Of<FailRank>(f.Push(1, 0, 1)).size() == 1);  // Once is enough.
}

TEST_CASE("AgentCore: a rank is left out of 8 rounds in a row, and then waited for", "[pipeline]") {
  Fixture f;
  f.StartPatient(MakeView(1, {2, 2}, 1));
  for (uint64_t round = 1; round <= kLeftOutInARowMax; ++round) {
    f.Push(0, 0, round);
    f.Hurry(round);
    const auto complete = f.Of<CompleteRound>(f.Finish(f.AfterPatience()));
    REQUIRE(complete.size() == 1);
    CHECK(complete[0].left_out == std::vector{false, true});
    f.Push(1, 0, round);
  }
  constexpr uint64_t kNext = kLeftOutInARowMax + 1;
  f.Push(0, 0, kNext);
  f.Hurry(kNext);
  CHECK(f.Of<ReduceSlice>(f.AfterPatience()).empty());
  f.Push(1, 0, kNext);
  const auto complete = f.Of<CompleteRound>(f.Finish(f.Flush()));
  REQUIRE(complete.size() == 1);
  CHECK(complete[0].left_out.empty());
  f.Push(0, 0, kNext + 1);
  f.Hurry(kNext + 1);
  CHECK(f.Of<ReduceSlice>(f.AfterPatience()).size() == 1);
}

TEST_CASE("AgentCore: a rank that has not been told of the tensor is not left out", "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {2, 2}, 1));
  TensorSpec spec = Spec("w", 1024);
  spec.collective.patience_ms = 20;
  f.Declare(0, spec);
  f.AgreeTo(f.Allocated(0));
  f.Push(0, 0, 1);
  f.Hurry(1);
  CHECK(f.Of<ReduceSlice>(f.AfterPatience()).empty());
  // It would begin with round 2 otherwise, as its first.
  const auto told = f.Of<DeclareReply>(f.Declare(1, spec));
  REQUIRE(told.size() == 1);
  CHECK(told[0].held == Round{0});
  // Since the owner's word the patience is over.
  f.Flush();
  f.Tick();
  const auto reductions = f.Of<ReduceSlice>(f.Flush());
  REQUIRE(reductions.size() == 1);
  CHECK(reductions[0].inputs == std::vector{LocalRank{0}});
}

TEST_CASE("AgentCore: an owner's word of the next round waits until the open one is over",
          "[pipeline]") {
  Fixture f;
  f.StartPatient(MakeView(1, {2, 2}, 1));
  f.Push(0, 0, 1);
  f.Push(1, 0, 1);
  const auto reductions = f.Of<ReduceSlice>(f.Flush());
  REQUIRE(reductions.size() == 1);
  f.Reduced(reductions[0].ticket);
  const Effects sent = f.Flush();
  f.Hurry(2);  // Another owner's results are there already.
  f.now_ns += kPatienceNs - 1;
  f.Tick();
  f.Results(sent, 4);
  f.Flush();
  CHECK(f.Of<ReduceSlice>(f.Tick()).empty());
  CHECK(f.Of<ReduceSlice>(f.Flush()).empty());
  f.now_ns += 1;
  f.Tick();
  CHECK(f.Of<ReduceSlice>(f.Flush()).size() == 1);
}

TEST_CASE("AgentCore: a notice that others are missing, too, starts no patience", "[pipeline]") {
  Fixture f;
  f.StartPatient(MakeView(1, {2, 2, 1, 1}, 1));
  f.From<wire::Waiting>(0, wire::FrameType::kWaiting,
                        {{.key = Key("w"),
                          .round = Round{1},
                          .waited_ns = 1'000'000'000,
                          .missing_nodes = {0, 1, 2},
                          .absent_ns = {0, 0, 0}}});
  CHECK(f.Of<ReduceSlice>(f.AfterPatience()).empty());
}

TEST_CASE("AgentCore: alone, a node counts its own ranks", "[pipeline]") {
  Fixture f(3);
  f.StartPatient(MakeView(1, {3}, 0));
  f.Push(0, 0, 1);
  CHECK(f.Of<ReduceSlice>(f.AfterPatience()).empty());  // One of three is less than half.
  f.Push(1, 0, 1);
  const auto reductions = f.Of<ReduceSlice>(f.AfterPatience());
  REQUIRE(reductions.size() == 1);
  CHECK(reductions[0].is_final);
  CHECK(reductions[0].inputs == std::vector{LocalRank{0}, LocalRank{1}});
  CHECK(reductions[0].rank_count == 3);
  const auto complete = f.Of<CompleteRound>(f.Reduced(reductions[0].ticket));
  REQUIRE(complete.size() == 1);
  CHECK(complete[0].left_out == std::vector{false, false, true});
}

TEST_CASE("AgentCore: a node that is alone since a rank pushed counts its own ranks",
          "[pipeline]") {
  Fixture f;
  f.StartPatient(MakeView(1, {2, 2}, 1));
  f.Push(0, 0, 1);
  f.Recover(MakeView(2, {2}, 1), wire::Verdict::kRedo);
  f.now_ns += AgentCoreConfig().waiting_first_ns;
  f.Tick();
  const auto reductions = f.Of<ReduceSlice>(f.AfterPatience());
  REQUIRE(reductions.size() == 1);
  CHECK(reductions[0].inputs == std::vector{LocalRank{0}});
}

TEST_CASE("AgentCore: a round that is begun again has the same ranks", "[pipeline]") {
  Fixture f;
  f.StartPatient(MakeView(1, {2, 2}, 1));
  f.Push(0, 0, 1);
  f.Hurry(1);
  f.AfterPatience();
  f.Push(1, 0, 1);
  f.Recover(MakeView(2, {2, 2}, 1), wire::Verdict::kRedo);
  const auto again = f.Of<ReduceSlice>(f.Flush());
  REQUIRE(again.size() == 1);
  CHECK(again[0].inputs == std::vector{LocalRank{0}});
}

TEST_CASE("AgentCore: after an aborted round a late rank is not left out of the next",
          "[pipeline]") {
  Fixture f;
  f.StartPatient(MakeView(1, {2, 2}, 1));
  f.Push(0, 0, 1);
  f.Hurry(1);
  f.AfterPatience();
  f.Recover(MakeView(2, {2, 2}, 1), wire::Verdict::kAbort);
  f.Push(0, 0, 2);
  f.Hurry(2);
  CHECK(f.Of<ReduceSlice>(f.AfterPatience()).empty());
  const auto told = f.Of<CompleteRound>(f.Push(1, 0, 1));
  REQUIRE(told.size() == 1);
  CHECK(told[0].status == Status::kAborted);
  CHECK(f.Of<ReduceSlice>(f.AfterPatience()).empty());  // It might read the next round's end.
  f.Push(1, 0, 2);
  const auto reductions = f.Of<ReduceSlice>(f.Flush());
  REQUIRE(reductions.size() == 1);
  CHECK(reductions[0].inputs.size() == 2);
}

TEST_CASE("AgentCore: no rank is left out of the round after one without a result", "[pipeline]") {
  Fixture f;
  f.StartPatient(MakeView(1, {2, 2}, 1));
  f.Push(0, 0, 1);
  f.Push(1, 0, 1);
  f.Recover(MakeView(2, {2, 2}, 1), wire::Verdict::kAbort);
  f.Push(0, 0, 2);
  f.Hurry(2);
  // Rank 1 may not have looked at round 1 yet.
  CHECK(f.Of<ReduceSlice>(f.AfterPatience()).empty());
  f.Push(1, 0, 2);
  const auto complete = f.Of<CompleteRound>(f.Finish(f.Flush()));
  REQUIRE(complete.size() == 1);
  CHECK(complete[0].left_out.empty());
  // The next one goes on without it.
  f.Push(0, 0, 3);
  f.Hurry(3);
  CHECK(f.Of<ReduceSlice>(f.AfterPatience()).size() == 1);
}

TEST_CASE("AgentCore: without patience nothing goes on", "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {2, 2}, 1));
  f.Open(Spec("w", 1024));
  f.Push(0, 0, 1);
  f.Hurry(1);
  CHECK(f.Of<ReduceSlice>(f.AfterPatience()).empty());
  CHECK(f.Of<FailRank>(f.Push(1, 0, 1)).empty());
}

}  // namespace
}  // namespace talweg::pipeline
