// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/tensor_placement.h"

#include <numeric>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/pipeline/agent_core_fixture.h"

namespace talweg::pipeline {
namespace {

using Catch::Contains;
using testing::Key;
using testing::MakeView;
using testing::Spec;

// Node 0 of each view.
struct Placing {
  explicit Placing(const view::View& view) : views(view.members[0].id, view.members[0].rank_count) {
    Enter(view);
  }
  void Enter(const view::View& view) {
    views.Enter(view);
    views.Freeze();
  }
  AgentTensor Tensor(const TensorSpec& spec) const {
    AgentTensor tensor;
    tensor.key = Key(spec.name);
    tensor.spec = spec;
    tensor.pushed.resize(views.present()->members[0].rank_count);
    return tensor;
  }

  ViewState views;
};

TensorSpec Among(TensorSpec spec, const std::vector<uint32_t>& ranks) {
  for (const uint32_t rank : ranks) spec.ranks.emplace_back(rank);
  return spec;
}

// Needs every rank of its group.
TensorSpec Gather(const std::vector<uint32_t>& ranks) {
  TensorSpec spec = Among(Spec("g", 16, DType::kF32, Op::kCopy), ranks);
  spec.collective.gives = Share::kOwn;
  return spec;
}

TEST_CASE("PlaceTensor: a rank that does not exist is named", "[pipeline]") {
  const Placing p(MakeView(1, {2, 1}, 1));
  AgentTensor outside = p.Tensor(Among(Spec("w", 8), {0, 3}));
  CHECK_THAT(PlaceTensor(p.views, outside),
             Contains("there is no rank 3; the job has ranks 0 to 2"));
  CHECK_FALSE(outside.resolved);
  AgentTensor rootless = p.Tensor(Spec("w", 8, DType::kF32, Op::kCopy, 7));
  CHECK_THAT(PlaceTensor(p.views, rootless), Contains("there is no rank 7"));
  // The primary owner tells the others that the tensor has failed.
  CHECK(rootless.owners.contains(rootless.primary));
  CHECK(rootless.slices.empty());
}

TEST_CASE("PlaceTensor: a tensor of too many slices is refused with a size that would do",
          "[pipeline]") {
  view::View view = MakeView(1, {1, 1}, 1);
  const Placing p(view);
  AgentTensor tensor = p.Tensor(Spec("w", uint64_t{wire::kTensorSlicesMax} * 16 * 1024 + 1));
  CHECK_THAT(PlaceTensor(p.views, tensor),
             Contains("more than 30000 slices of 64 KiB; use a slice size of at least"));
  CHECK(tensor.slices.empty());
  CHECK(tensor.slice_states.size() == 0);
  CHECK(tensor.owners.size() == 1);
}

TEST_CASE("PlaceTensor: a tensor of too many parts is refused with what would do", "[pipeline]") {
  const Placing p(MakeView(1, {100, 100}, 1));
  std::vector<uint32_t> all(200);
  std::iota(all.begin(), all.end(), 0);
  TensorSpec spec = Gather(all);
  spec.collective.gives = Share::kRow;
  spec.collective.gets = Share::kColumn;
  AgentTensor tensor = p.Tensor(spec);
  CHECK_THAT(PlaceTensor(p.views, tensor),
             Contains("40000 parts") && Contains("use a group of fewer ranks"));
  CHECK(tensor.slices.empty());
}

TEST_CASE("PlaceTensor: the group's ranks of this node are known, and the owners have to agree",
          "[pipeline]") {
  const Placing p(MakeView(1, {2, 2}, 2));
  AgentTensor all = p.Tensor(Spec("w", 64 * 1024));
  all.owners[AggregatorIndex{7}].agreed = true;  // In an older view.
  REQUIRE(PlaceTensor(p.views, all).empty());
  CHECK(all.in_group == std::vector<bool>{true, true});
  CHECK(all.in_group_count == 2);
  CHECK(all.group.empty());
  CHECK(all.owners.size() == 2);
  CHECK_FALSE(all.agreed());
  CHECK(all.slice_states.size() == all.slices.size());

  AgentTensor some = p.Tensor(Among(Spec("w", 8), {1, 3}));
  REQUIRE(PlaceTensor(p.views, some).empty());
  CHECK(some.in_group == std::vector<bool>{false, true});
  CHECK(some.in_group_count == 1);
  CHECK(some.group == view::Group{{NodeRank{0}, LocalRank{1}}, {NodeRank{1}, LocalRank{1}}});
}

TEST_CASE("PlaceTensor: what travels depends on who else is in the job", "[pipeline]") {
  const auto travel = [](const std::vector<uint32_t>& nodes, uint32_t aggregators) {
    const Placing p(MakeView(1, nodes, aggregators));
    AgentTensor tensor = p.Tensor(Spec("w", 8));
    REQUIRE(PlaceTensor(p.views, tensor).empty());
    return tensor.travel;
  };
  CHECK(travel({2}, 0) == Travel::kNone);
  CHECK(travel({2}, 1) == Travel::kAll);
  CHECK(travel({2, 1}, 1) == Travel::kShared);
}

TEST_CASE("PlaceTensor: a tensor stays dead when another member takes the lost one's place",
          "[pipeline]") {
  Placing p(MakeView(1, {1, 1}, 1));
  AgentTensor gather = p.Tensor(Gather({0, 1}));
  AgentTensor sum = p.Tensor(Spec("w", 8));
  const auto place = [&](const view::View& view) {
    p.Enter(view);
    REQUIRE(PlaceTensor(p.views, gather).empty());
    REQUIRE(PlaceTensor(p.views, sum).empty());
    CHECK_FALSE(sum.is_dead);
  };
  place(MakeView(2, {1, 1}, 1));
  CHECK_FALSE(gather.is_dead);
  place(MakeView(3, {1}, 1));
  CHECK(gather.is_dead);
  view::View again = MakeView(4, {1, 1}, 1);
  again.members[1].id.incarnation = Incarnation{555};
  place(again);
  CHECK(gather.is_dead);
}

TEST_CASE("PlaceTensor: a tensor that was dead at first stays dead, whoever comes", "[pipeline]") {
  Placing p(MakeView(1, {1, 1}, 1));
  p.Enter(MakeView(2, {1}, 1));
  // Ranks here still use the numbers of the first view. In this one a rank of the group is gone, so
  // it is not known which member the tensor needs.
  AgentTensor gather = p.Tensor(Gather({0, 1}));
  REQUIRE(PlaceTensor(p.views, gather).empty());
  CHECK(gather.is_dead);
  view::View taken = MakeView(3, {1, 1}, 1);
  taken.members[1].id.incarnation = Incarnation{555};
  p.Enter(taken);
  REQUIRE(PlaceTensor(p.views, gather).empty());
  CHECK(gather.participation.IsPossible());
  CHECK(gather.is_dead);
}

TEST_CASE("Renumber: ranks keep their places, and ranks that are gone get numbers of nobody",
          "[pipeline]") {
  view::View first = MakeView(1, {1, 1, 2}, 1);
  Placing p(first);
  AgentTensor tensor = p.Tensor(Among(Spec("w", 8, DType::kF32, Op::kCopy, 2), {0, 1, 2}));
  REQUIRE(PlaceTensor(p.views, tensor).empty());
  view::View second = first;
  second.epoch = Epoch{2};
  second.members.erase(second.members.begin() + 1);
  Renumber(second, tensor);
  REQUIRE(tensor.spec.ranks.size() == 3);
  CHECK(tensor.spec.ranks[0] == Rank{0});
  CHECK(tensor.spec.ranks[1] == Rank{1});  // It was rank 2.
  CHECK(tensor.spec.ranks[2].value() >= second.RankCount());
  CHECK(tensor.spec.root_rank == 1);

  view::View third = second;
  third.members.pop_back();
  Renumber(third, tensor);
  CHECK(tensor.spec.ranks[0] == Rank{0});
  CHECK(tensor.spec.ranks[1] != tensor.spec.ranks[2]);
  CHECK(tensor.spec.root_rank == wire::kNoRank - 1);
}

}  // namespace
}  // namespace talweg::pipeline
