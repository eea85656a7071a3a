// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/recovery.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/pipeline/core_parts_fixture.h"

namespace talweg::pipeline {
namespace {

using Catch::Contains;
using testing::CoreParts;
using testing::Fixture;
using testing::MakeView;
using testing::Spec;
using wire::Verdict;

// 192 KiB: three slices of 64 KiB with one aggregator, four of 48 KiB with two.
constexpr uint64_t kCount = 3 * 16 * 1024;

struct Recovering : CoreParts {
  explicit Recovering(const view::View& view = MakeView(1, {1, 1}, 1)) : CoreParts(view) {}

  // Slices of the open round are here, from epoch `epoch`.
  static void Have(AgentTensor& tensor, const std::vector<bool>& slices, uint64_t epoch = 1) {
    tensor.partial = {.sum_epoch = Epoch{epoch}, .ranks_summed = 2, .have = slices};
    for (const bool is_here : slices) tensor.partial.have_count += is_here ? 1 : 0;
    tensor.partial.lengths.assign(tensor.spec.part_count(), tensor.spec.collective.part_bytes());
  }
  void Enter(const view::View& view) {
    EnterAndFreeze(view);
    recovery.FreezeAll(out);
    tensors.CheckInvariants();
  }
  // Returns the text with which the job has failed, or "".
  std::string Decide(const AgentTensor& tensor, wire::Decision decision) {
    decision.key = tensor.key;
    recovery.OnDecision(tensor.primary, decision, out);
    if (!views.has_failed()) tensors.CheckInvariants();
    return views.failed_text();
  }

  Recovery recovery{&config, &views, &tensors, &links, &rounds, &quiesce, &failures, &counters};
};

// A round was open when the view changed. This node has contributed to it, and has its first slice.
struct OneSliceHere : Recovering {
  OneSliceHere() : tensor(Open(Spec("w", kCount))) {
    tensor.held = {.round = Round{4}, .sum_epoch = Epoch{1}, .ranks_summed = 2};
    PushAll(tensor);
    Have(tensor, {true, false, false});
    Enter(MakeView(2, {1, 1}, 1));
  }
  AgentTensor& tensor;
};

TEST_CASE("Recovery: the report says what is held, contributed and here", "[pipeline]") {
  OneSliceHere f;
  REQUIRE(f.tensor.report() != nullptr);
  const wire::Report& report = *f.tensor.report();
  CHECK(report.held == Round{4});
  CHECK(report.held_epoch == Epoch{1});
  CHECK(report.contributed == Round{5});
  CHECK(report.partial_epoch == Epoch{1});
  CHECK(report.slices == std::vector<uint64_t>{1});
  CHECK(f.tensor.state == TensorState::kDeclaring);
  CHECK_FALSE(f.rounds.MaySend(f.tensor));
}

TEST_CASE("Recovery: a tensor that no rank was told of, or that has failed, is not reported",
          "[pipeline]") {
  Recovering f;
  AgentTensor& untold = f.Open(Spec("untold", 10));
  untold.told.assign(1, false);
  AgentTensor& failed = f.Open(Spec("failed", 10));
  f.failures.FailTensor(failed, Status::kMismatch, "why", f.out);
  AgentTensor& early = f.tensors.Add({Spec("early", 10)}, LocalRank{0});
  f.Enter(MakeView(2, {1, 1}, 1));
  CHECK(untold.report() == nullptr);
  CHECK(failed.report() == nullptr);
  CHECK(early.report() == nullptr);
  CHECK(early.state == TensorState::kAllocating);
  f.recovery.Settle(f.out);
  CHECK(f.views.phase() == Phase::kActive);
}

TEST_CASE("Recovery: a node that is the whole job decides by itself", "[pipeline]") {
  Recovering f;
  AgentTensor& tensor = f.Open(Spec("w", kCount));
  f.PushAll(tensor);
  f.Have(tensor, {true, false, false});
  f.Enter(MakeView(2, {1}, 0));
  CHECK(tensor.round_state() == RoundState::kTravelling);
  CHECK(tensor.partial.have_count == 0);  // The round is done again.
}

TEST_CASE("Recovery: of a tensor that is cut anew, a slice is here if all its bytes are",
          "[pipeline]") {
  Recovering f;
  AgentTensor& tensor = f.Open(Spec("w", kCount));
  REQUIRE(tensor.slices.size() == 3);
  f.PushAll(tensor);
  const auto after = [&](const std::vector<bool>& have) {
    f.Have(tensor, have);
    f.Enter(MakeView(f.views.present()->epoch.value() + 1, {1, 1}, 2));
    REQUIRE(tensor.slices.size() == 4);
    const std::vector<bool> kept = tensor.partial.have;
    f.Enter(MakeView(f.views.present()->epoch.value() + 1, {1, 1}, 1));
    return kept;
  };
  CHECK(after({true, false, false}) == std::vector<bool>{true, false, false, false});
  CHECK(after({true, true, false}) == std::vector<bool>{true, true, false, false});
  CHECK(after({false, true, true}) == std::vector<bool>{false, false, true, true});
  CHECK(after({true, true, true}) == std::vector<bool>{true, true, true, true});
  CHECK(after({false, true, false}) == std::vector<bool>{false, false, false, false});
  CHECK(tensor.partial.have_count == 0);
}

TEST_CASE("Recovery: no member reports slices that another member may not have", "[pipeline]") {
  Recovering f;
  TensorSpec spec = Spec("g", 16 * 1024);
  spec.collective.op = Op::kCopy;
  spec.collective.gives = Share::kOwn;
  spec.collective.gets = Share::kRoot;
  spec.ranks = {Rank{0}, Rank{1}};
  AgentTensor& tensor = f.Open(spec);
  f.PushAll(tensor);
  f.Have(tensor, std::vector<bool>(tensor.slices.size(), true));
  f.Enter(MakeView(2, {1, 1}, 1));
  REQUIRE(tensor.report() != nullptr);
  CHECK(tensor.report()->contributed == Round{1});
  CHECK(tensor.report()->slices.empty());
  CHECK(tensor.report()->partial_epoch == Epoch{0});
}

TEST_CASE("Recovery: a decision that cannot be true ends the job with its reason", "[pipeline]") {
  struct Case {
    wire::Decision decision;
    std::string text;
  };
  const Epoch first{1};
  const std::vector<uint16_t> none(3, 1);
  const std::vector<Case> cases = {
      {{.round = Round{4}, .verdict = Verdict::kRedo}, "to do a round again that is not open"},
      {{.round = Round{6}, .verdict = Verdict::kAbort}, "to abort a round that is not open"},
      // The round is held with a result.
      {{.round = Round{4}, .verdict = Verdict::kAbort}, "to abort a round that is not open"},
      {{.round = Round{5}, .verdict = Verdict::kFinish, .sum_epoch = first, .sources = {0}},
       "1 sources for 3 slices"},
      {{.round = Round{5}, .verdict = Verdict::kFinish, .sources = none}, "from sums of no epoch"},
      {{.round = Round{4}, .verdict = Verdict::kFinish, .sum_epoch = Epoch{7}, .sources = none},
       "from sums of another epoch"},
      {{.round = Round{6}, .verdict = Verdict::kFinish, .sum_epoch = first, .sources = none},
       "has not contributed to"},
      {{.round = Round{5}, .verdict = Verdict::kFinish, .sum_epoch = first, .sources = {0, 1, 2}},
       "from an unknown member"},
      {{.round = Round{5}, .verdict = Verdict::kFinish, .sum_epoch = first, .sources = {0, 0, 1}},
       "from a slice that this node does not have"},
      {{.round = Round{5},
        .verdict = Verdict::kFinish,
        .sum_epoch = Epoch{2},
        .sources = {0, 1, 1}},
       "from a slice that this node does not have"},
  };
  for (const Case& each : cases) {
    INFO(each.text);
    OneSliceHere f;
    const std::string failed = f.Decide(f.tensor, each.decision);
    CHECK_THAT(failed, Contains("decided " + each.text) || Contains(each.text));
    CHECK_THAT(failed, Contains("tensor 'w'") && Contains("held round 4"));
    CHECK(Fixture::Of<ReportLost>(f.out).size() == 1);
  }
}

TEST_CASE("Recovery: each decision is carried out", "[pipeline]") {
  OneSliceHere f;
  SECTION("Redo: what was here is discarded") {
    CHECK(f.Decide(f.tensor, {.round = Round{5}, .verdict = Verdict::kRedo}) == "");
    CHECK(f.tensor.round_state() == RoundState::kTravelling);
    CHECK(f.tensor.partial.have_count == 0);
    CHECK(f.counters.redos == 1);
  }
  SECTION("Finish of the open round: what was here counts") {
    CHECK(f.Decide(f.tensor, {.round = Round{5},
                              .verdict = Verdict::kFinish,
                              .sum_epoch = Epoch{1},
                              .sources = {0, 1, 1}}) == "");
    CHECK(f.tensor.round_state() == RoundState::kFinishingOpen);
    CHECK(f.tensor.partial.have_count == 1);
  }
  SECTION("Finish of the open round from sums of another epoch: it does not count") {
    CHECK(f.Decide(f.tensor, {.round = Round{5},
                              .verdict = Verdict::kFinish,
                              .sum_epoch = Epoch{2},
                              .sources = {1, 1, 1}}) == "");
    CHECK(f.tensor.round_state() == RoundState::kFinishingOpen);
    CHECK(f.tensor.partial.have_count == 0);
  }
  SECTION("Finish of the held round: the others get it, then the open one is done again") {
    CHECK(f.Decide(f.tensor, {.round = Round{4},
                              .verdict = Verdict::kFinish,
                              .sum_epoch = Epoch{1},
                              .sources = {0, 0, 0}}) == "");
    CHECK(f.tensor.round_state() == RoundState::kFinishingHeld);
    CHECK(f.tensor.partial.have_count == 0);
    CHECK(f.tensor.contributed());
  }
  SECTION("Abort of the open round: its ranks hear of it, and the next one opens") {
    CHECK(f.Decide(f.tensor, {.round = Round{5}, .verdict = Verdict::kAbort, .text = "why"}) == "");
    CHECK(f.tensor.round_state() == RoundState::kFilling);
    CHECK(f.tensor.open_round() == Round{6});
    const auto completions = Fixture::Of<CompleteRound>(f.out);
    REQUIRE(completions.size() == 1);
    CHECK(completions[0].status == Status::kAborted);
    CHECK(completions[0].text == "why");
  }
  if (f.tensor.finish() == nullptr) CHECK(f.counters.finishes == 0);
  CHECK(f.views.phase() == Phase::kActive);  // All tensors are decided.
}

TEST_CASE("Recovery: a round that was aborted here before is only heard of", "[pipeline]") {
  Recovering f;
  AgentTensor& tensor = f.Open(Spec("w", kCount));
  tensor.held = {.round = Round{4}};
  f.PushAll(tensor);
  f.Enter(MakeView(2, {1, 1}, 1));
  CHECK(f.Decide(tensor, {.round = Round{4}, .verdict = Verdict::kAbort}) == "");
  CHECK(tensor.round_state() == RoundState::kTravelling);
  CHECK(tensor.open_round() == Round{5});
  CHECK(Fixture::Of<CompleteRound>(f.out).empty());
}

TEST_CASE("Recovery: only the primary owner's decision counts, and once", "[pipeline]") {
  OneSliceHere f;
  const wire::Decision redo = {.key = f.tensor.key, .round = Round{5}, .verdict = Verdict::kRedo};
  f.recovery.OnDecision(AggregatorIndex{f.tensor.primary.value() + 1}, redo, f.out);
  CHECK(f.tensor.awaits_decision());
  CHECK(f.Decide(f.tensor, redo) == "");
  CHECK(f.Decide(f.tensor, redo) == "");
  CHECK(f.counters.redos == 1);
  CHECK(f.counters.frames_ignored == 2);
}

TEST_CASE("Recovery: a job of one view has nothing left to do a round again with", "[pipeline]") {
  OneSliceHere f;
  f.config.one_view = true;
  SECTION("Redo") {
    CHECK_THAT(f.Decide(f.tensor, {.round = Round{5}, .verdict = Verdict::kRedo}),
               Contains("--loss_policy=continue"));
  }
  SECTION("Finish") {
    CHECK_THAT(f.Decide(f.tensor, {.round = Round{5},
                                   .verdict = Verdict::kFinish,
                                   .sum_epoch = Epoch{1},
                                   .sources = {0, 1, 1}}),
               Contains("nothing is kept for that"));
  }
  SECTION("Abort needs nothing") {
    CHECK(f.Decide(f.tensor, {.round = Round{5}, .verdict = Verdict::kAbort}) == "");
  }
}

}  // namespace
}  // namespace talweg::pipeline
