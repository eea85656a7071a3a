// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/step_quiesce.h"

#include <catch2/catch.hpp>

#include "libs/pipeline/agent_core_fixture.h"

namespace talweg::pipeline {
namespace {

using testing::Fixture;
using testing::MakeView;
using testing::Spec;

struct Quiescing {
  Quiescing() {
    for (uint32_t i = 0; i < 2; ++i) ranks.Join(LocalRank{i}, 1);
    view::View view = MakeView(1, {2}, 1);
    view.steps = 100;
    views.Enter(view);
    views.Freeze();
    views.Activate();
  }
  void AtBoundary(uint32_t rank, uint64_t steps) {
    quiesce.OnRankAtBoundary(LocalRank{rank}, steps, out);
  }
  std::vector<Quiesced> answers() const { return Fixture::Of<Quiesced>(out); }

  ViewState views{{NodeRank{0}, Incarnation{100}}, 2};
  LocalRanks ranks{2, &views};
  TensorTable tensors{2};
  StepQuiesce quiesce{&views, &ranks, &tensors};
  Effects out;
};

TEST_CASE("StepQuiesce: it answers when all ranks have ended the step", "[pipeline]") {
  Quiescing q;
  q.quiesce.Ask(7, 105, q.out);
  CHECK(Fixture::Of<StopRanks>(q.out).front().steps == 5);  // This is in the ranks' own count.
  q.AtBoundary(0, 5);
  CHECK(q.quiesce.StepEndedBy(LocalRank{0}) == 105);
  CHECK(q.answers().empty());
  q.AtBoundary(1, 4);
  CHECK(q.answers().empty());
  SECTION("It does not matter which rank ends the step last") { q.AtBoundary(1, 5); }
  SECTION("A rank that has left is not waited for") {
    q.ranks.Leave(LocalRank{1});
    q.quiesce.TryAnswer(q.out);
  }
  REQUIRE(q.answers().size() == 1);
  CHECK(q.answers().front().id == 7);
  CHECK(q.answers().front().step == 105);
  q.quiesce.TryAnswer(q.out);
  CHECK(q.answers().size() == 1);
}

TEST_CASE("StepQuiesce: it waits for open rounds, except for those of side tensors", "[pipeline]") {
  Quiescing q;
  AgentTensor& tensor = q.tensors.Add({Spec("w", 8)}, LocalRank{0});
  tensor.pushed_count = 1;
  q.quiesce.Ask(7, 101, q.out);
  q.AtBoundary(0, 1);
  q.AtBoundary(1, 1);
  CHECK(q.answers().empty());
  SECTION("The round ends") { tensor.pushed_count = 0; }
  SECTION("The round belongs to a side tensor") { tensor.spec.collective.side = true; }
  q.quiesce.TryAnswer(q.out);
  CHECK(q.answers().size() == 1);
}

TEST_CASE("StepQuiesce: it asks for the next step if a round has gone on without a rank",
          "[pipeline]") {
  Quiescing q;
  AgentTensor& tensor = q.tensors.Add({Spec("w", 8)}, LocalRank{0});
  uint64_t step = 106;
  SECTION("The round is over, and the rank owes it") { tensor.owes = {false, true}; }
  SECTION("The round is open, and the rank is left out") {
    tensor.left_out = {false, true};
    tensor.pushed = {true, false};
    tensor.pushed_count = 1;
  }
  SECTION("The rank has left, so it pushes nothing any more") {
    tensor.owes = {false, true};
    q.ranks.Leave(LocalRank{1});
    step = 105;
  }
  SECTION("The tensor has failed, so nobody pushes it any more") {
    tensor.owes = {false, true};
    tensor.failed_status = Status::kAborted;
    step = 105;
  }
  q.quiesce.Ask(7, 105, q.out);
  q.AtBoundary(0, 5);
  q.AtBoundary(1, 5);
  REQUIRE(q.answers().size() == 1);
  CHECK(q.answers().front().step == step);
}

TEST_CASE("StepQuiesce: step 0 asks for the latest step that a rank is in", "[pipeline]") {
  Quiescing q;
  q.quiesce.Ask(7, 0, q.out);
  q.AtBoundary(0, 1);
  q.AtBoundary(1, 1);
  CHECK(q.answers().empty());
  q.quiesce.OnRanksStop({3, 4}, q.out);
  REQUIRE(q.answers().size() == 1);
  CHECK(q.answers().front().step == 105);
  q.quiesce.OnRanksStop({9, 9}, q.out);
  CHECK(q.answers().size() == 1);
}

TEST_CASE("StepQuiesce: ranks go on when it is over", "[pipeline]") {
  Quiescing q;
  q.AtBoundary(0, 1);
  CHECK_FALSE(q.quiesce.AnyRankWaits());  // No quiesce is under way.
  q.quiesce.Ask(7, 101, q.out);
  q.AtBoundary(0, 1);
  CHECK(q.quiesce.AnyRankWaits());
  q.quiesce.OnResume(6, q.out);  // This resumes another quiesce.
  CHECK(q.quiesce.is_asked());
  q.quiesce.OnResume(7, q.out);
  CHECK_FALSE(q.quiesce.is_asked());
  CHECK_FALSE(q.quiesce.AnyRankWaits());
  CHECK_FALSE(Fixture::Of<StopRanks>(q.out).back().steps.has_value());
}

}  // namespace
}  // namespace talweg::pipeline
