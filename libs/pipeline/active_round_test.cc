// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/active_round.h"

#include <catch2/catch.hpp>

#include "libs/pipeline/agent_core_fixture.h"
#include "libs/pipeline/tensor_placement.h"

namespace talweg::pipeline {
namespace {

// The form of a contribution that travels plain.
wire::Form FormOf(const ActiveRound& round, SliceIndex slice) {
  return round.FormOf(slice, round.CostOf(slice));
}

using testing::MakeView;
using testing::Spec;

constexpr SliceIndex kFirst{0};
constexpr SliceIndex kLast{2};

// Three slices of 64 KiB.
constexpr uint64_t kCount = 3 * 16 * 1024;

AgentTensor Placed(const view::View& view, const TensorSpec& spec, uint32_t rank_count = 1) {
  ViewState views(view.members[0].id, rank_count);
  views.Enter(view);
  views.Freeze();
  AgentTensor tensor;
  tensor.spec = spec;
  tensor.pushed.resize(rank_count);
  REQUIRE(PlaceTensor(views, tensor).empty());
  tensor.given.lengths.assign(spec.part_count(), spec.collective.part_bytes());
  return tensor;
}

TEST_CASE("ActiveRound: a member gives each slice at its length, and gets it back", "[pipeline]") {
  AgentTensor tensor = Placed(MakeView(1, {1, 1}, 1), Spec("w", kCount));
  REQUIRE(tensor.slices.size() == 3);
  const ActiveRound round(tensor);
  CHECK(round.GivenLength(kFirst) == 64 * kKiB);
  CHECK(FormOf(round, kFirst) == wire::Form::kWritten);
  CHECK(round.CostOf(kFirst) == wire::CreditCost(wire::Form::kWritten, 64 * kKiB));
  CHECK(round.WantsResult(kFirst));
  CHECK_FALSE(round.CopiesOwn(kFirst));
  CHECK_FALSE(round.IsPrivate(kFirst));
  CHECK(round.Source() == Memory::kContribution);

  tensor.given.lengths = {64 * kKiB + 4};
  CHECK(round.GivenLength(SliceIndex{1}) == 4);
  CHECK(FormOf(round, SliceIndex{1}) == wire::Form::kInline);
  CHECK(round.GivenLength(kLast) == 0);
  tensor.given.disagreement = "rank 0 says so";
  CHECK(FormOf(round, kFirst) == wire::Form::kDisagreement);
  CHECK(round.CostOf(kFirst) == 0);
}

TEST_CASE("ActiveRound: slices of a node's own ranks stay on the node", "[pipeline]") {
  CHECK(ActiveRound(Placed(MakeView(1, {1}, 0), Spec("w", 8))).IsPrivate(kFirst));
  // In a job of one node that has aggregators, the aggregators sum.
  CHECK_FALSE(ActiveRound(Placed(MakeView(1, {1}, 1), Spec("w", 8))).IsPrivate(kFirst));
  TensorSpec ours = Spec("w", 8);
  ours.ranks = {Rank{0}, Rank{1}};
  const AgentTensor tensor = Placed(MakeView(1, {2, 1}, 1), ours, 2);
  CHECK(ActiveRound(tensor).IsPrivate(kFirst));
  CHECK(ActiveRound(tensor).IsPrivate());
  CHECK(ActiveRound(tensor).Givers(kFirst) == std::vector<LocalRank>{LocalRank{0}, LocalRank{1}});
  CHECK(ActiveRound(tensor).Source() == Memory::kSendBuffer);
}

TEST_CASE("ActiveRound: a root copies what it gives, unless that lies on a GPU", "[pipeline]") {
  AgentTensor root = Placed(MakeView(1, {1, 1}, 1), Spec("w", 8, DType::kF32, Op::kCopy, 0));
  CHECK(ActiveRound(root).CopiesOwn(kFirst));
  CHECK_FALSE(ActiveRound(root).WantsResult(kFirst));
  root.wishes.on_device = true;
  CHECK_FALSE(ActiveRound(root).CopiesOwn(kFirst));
  CHECK(ActiveRound(root).WantsResult(kFirst));

  const AgentTensor other = Placed(MakeView(1, {1, 1}, 1), Spec("w", 8, DType::kF32, Op::kCopy, 1));
  CHECK(FormOf(ActiveRound(other), kFirst) == wire::Form::kEmpty);
  CHECK(ActiveRound(other).WantsResult(kFirst));
}

TEST_CASE("ActiveRound: in a Finish the source gives what it has, and others take it",
          "[pipeline]") {
  AgentTensor tensor = Placed(MakeView(1, {1, 1}, 1), Spec("w", kCount));
  tensor.held = {.round = Round{1},
                 .sum_epoch = Epoch{1},
                 .ranks_summed = 2,
                 .lengths = {tensor.spec.bytes()}};
  const ActiveRound round(tensor);
  SECTION("The source holds the round") {
    tensor.AwaitDecision({});
    tensor.Finish({.round = Round{1}, .sources = {0, 1, 0}});
    CHECK(FormOf(round, kFirst) == wire::Form::kWritten);
    CHECK(FormOf(round, SliceIndex{1}) == wire::Form::kEmpty);
    CHECK(round.RanksGiven(kFirst) == 2);
    CHECK(round.Source() == Memory::kResult);
    CHECK_FALSE(round.WantsResult(SliceIndex{1}));
  }
  SECTION("The source has one slice of the open round") {
    tensor.partial = {
        .ranks_summed = 2, .have_count = 1, .have = {true, false, false}, .lengths = {64 * kKiB}};
    tensor.AwaitDecision({});
    tensor.Finish({.round = Round{2}, .sources = {0, 1, 1}});
    CHECK(round.GivenLength(kFirst) == 64 * kKiB);
    CHECK_FALSE(round.WantsResult(kFirst));
    CHECK(FormOf(round, kLast) == wire::Form::kEmpty);
    CHECK(round.WantsResult(kLast));
    CHECK_FALSE(round.IsPrivate(kLast));
  }
}

}  // namespace
}  // namespace talweg::pipeline
