// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/agent_tensor.h"

#include <catch2/catch.hpp>

#include "libs/pipeline/agent_core_fixture.h"
#include "libs/pipeline/tensor_placement.h"

namespace talweg::pipeline {
namespace {

using testing::MakeView;
using testing::Spec;

// Two ranks here, one at another node. Two aggregators own its four slices.
struct TwoRanks {
  TwoRanks() {
    const view::View view = MakeView(1, {2, 1}, 2);
    ViewState views(view.members[0].id, 2);
    views.Enter(view);
    views.Freeze();
    tensor.spec = Spec("w", 3 * 16 * 1024);
    tensor.spec.collective.patience_ms = 10;
    tensor.pushed.resize(2);
    tensor.told.assign(2, true);
    REQUIRE(PlaceTensor(views, tensor).empty());
    REQUIRE(tensor.slices.size() == 4);
    tensor.state = TensorState::kDeclaring;
  }
  void Push(uint32_t rank) {
    tensor.pushed[rank] = true;
    ++tensor.pushed_count;
  }
  void PushAll() {
    Push(0);
    Push(1);
  }
  // Round 1 ends with a result.
  void HoldFirst() {
    tensor.held = {.round = Round{1}, .sum_epoch = Epoch{1}, .ranks_summed = 3};
    tensor.OpenNextRound();
  }
  RoundState state() const {
    tensor.CheckInvariants();
    return tensor.round_state();
  }

  AgentTensor tensor;
};

TEST_CASE("AgentTensor: a round travels when all local ranks have pushed it", "[pipeline]") {
  TwoRanks t;
  CHECK(t.state() == RoundState::kFilling);
  CHECK(t.tensor.WaitsForPushes());
  t.Push(0);
  CHECK(t.state() == RoundState::kFilling);
  t.Push(1);
  CHECK(t.state() == RoundState::kTravelling);
  CHECK_FALSE(t.tensor.WaitsForPushes());
  t.HoldFirst();
  CHECK(t.state() == RoundState::kFilling);
  CHECK(t.tensor.active_round() == Round{2});
}

TEST_CASE("AgentTensor: a round travels without the ranks that are left out", "[pipeline]") {
  TwoRanks t;
  t.Push(1);
  t.tensor.LeaveOutMissing();
  CHECK(t.state() == RoundState::kTravelling);
  CHECK(t.tensor.LeavesOut(LocalRank{0}));
  t.HoldFirst();
  CHECK(t.state() == RoundState::kFilling);
  CHECK(t.tensor.Owes(LocalRank{0}));
  CHECK_FALSE(t.tensor.MayLeaveOutMissing());
}

TEST_CASE("AgentTensor: a rank may be left out of only so many rounds in a row", "[pipeline]") {
  TwoRanks t;
  for (uint32_t i = 0; i < kLeftOutInARowMax; ++i) {
    t.Push(1);
    REQUIRE(t.tensor.MayLeaveOutMissing());
    t.tensor.LeaveOutMissing();
    t.Push(0);  // It comes too late for the round, in time for the next.
    t.tensor.held = {.round = t.tensor.open_round(), .sum_epoch = Epoch{1}};
    t.tensor.OpenNextRound();
  }
  t.Push(1);
  CHECK_FALSE(t.tensor.MayLeaveOutMissing());
}

TEST_CASE("AgentTensor: after a report nothing travels until the decision", "[pipeline]") {
  TwoRanks t;
  SECTION("of a round that was contributed") {
    t.PushAll();
    t.tensor.AwaitDecision({.held = Round{0}});
    CHECK(t.state() == RoundState::kReported);
    t.tensor.ResumeOpenRound();
    CHECK(t.state() == RoundState::kTravelling);
  }
  SECTION("of a round that ranks push meanwhile") {
    t.tensor.AwaitDecision({.held = Round{0}});
    t.PushAll();
    CHECK(t.state() == RoundState::kReported);
    CHECK(t.tensor.contributed());
  }
  SECTION("of a tensor that fails") {
    t.tensor.AwaitDecision({.held = Round{0}});
    t.tensor.OpenNextRound();
    CHECK(t.state() == RoundState::kFilling);
    CHECK(t.tensor.report() == nullptr);
  }
}

TEST_CASE("AgentTensor: a Finish is of the held round, or of the open one", "[pipeline]") {
  TwoRanks t;
  t.HoldFirst();
  t.Push(0);
  t.tensor.AwaitDecision({.held = Round{1}});
  SECTION("the held round: ranks push the next one meanwhile") {
    t.tensor.Finish({.round = Round{1}, .sources = {0, 0, 0, 0}});
    CHECK(t.state() == RoundState::kFinishingHeld);
    CHECK(t.tensor.active_round() == Round{1});
    CHECK_FALSE(t.tensor.WaitsForPushes());
    t.Push(1);
    CHECK(t.state() == RoundState::kFinishingHeld);
    t.tensor.ResumeOpenRound();
    CHECK(t.state() == RoundState::kTravelling);
    CHECK(t.tensor.active_round() == Round{2});
  }
  SECTION("the open round, which the node has contributed to") {
    t.Push(1);
    t.tensor.Finish({.round = Round{2}, .sources = {0, 1, 1, 1}});
    CHECK(t.state() == RoundState::kFinishingOpen);
    t.tensor.held = {.round = Round{2}, .sum_epoch = Epoch{1}};
    t.tensor.OpenNextRound();
    CHECK(t.state() == RoundState::kFilling);
    CHECK(t.tensor.finish() == nullptr);
  }
}

TEST_CASE("AgentTensor: an owner that is lost has to agree again, and gets its slices again",
          "[pipeline]") {
  TwoRanks t;
  t.PushAll();
  for (auto& [index, agreement] : t.tensor.owners) agreement.agreed = true;
  REQUIRE(t.tensor.owners.size() == 2);
  t.tensor.state = TensorState::kOpen;
  const AggregatorIndex lost = t.tensor.slices[0].owner;
  for (size_t i = 0; i < t.tensor.slices.size(); ++i) {
    t.tensor.slice_states.Set(i, SliceState::kQueued);
    t.tensor.slice_states.Set(i, SliceState::kSent);
  }
  CHECK(t.tensor.WaitsFor(lost));
  t.tensor.LoseOwner(lost);
  CHECK(t.tensor.state == TensorState::kDeclaring);
  CHECK_FALSE(t.tensor.agreed());
  for (size_t i = 0; i < t.tensor.slices.size(); ++i) {
    CHECK(t.tensor.slice_states[i] ==
          (t.tensor.slices[i].owner == lost ? SliceState::kIdle : SliceState::kSent));
  }
  CHECK(t.state() == RoundState::kTravelling);
}

}  // namespace
}  // namespace talweg::pipeline
