// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/tensor_spec_rules.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/pipeline/agent_core_fixture.h"

namespace talweg::pipeline {
namespace {

using Catch::Contains;
using testing::MakeView;
using testing::Spec;

constexpr LocalRank kFirst{0};

std::vector<Rank> Ranks(const std::vector<uint32_t>& numbers) {
  std::vector<Rank> ranks;
  for (const uint32_t number : numbers) ranks.emplace_back(number);
  return ranks;
}

// Rank 0 of four, on two nodes. Without a view nobody knows the others.
struct Rules {
  explicit Rules(bool has_view = true) {
    if (has_view) views.Enter(MakeView(1, {2, 2}, 1));
  }
  std::string ProblemOf(const TensorSpec& spec) const {
    return Problem(Normalized(spec, views), kFirst, views, config);
  }

  ViewState views{{NodeRank{0}, Incarnation{100}}, 2};
  AgentCoreConfig config{.self = {NodeRank{0}, Incarnation{100}}, .tensor_bytes_max = 1000};
};

TensorSpec Gather() {
  TensorSpec spec = Spec("g", 4, DType::kF32, Op::kCopy);
  spec.collective.gives = Share::kOwn;
  return spec;
}

TEST_CASE("Normalized: a sum over all ranks does not name them, a gather does", "[pipeline]") {
  const Rules rules;
  TensorSpec sum = Spec("w", 4);
  sum.ranks = Ranks({0, 1, 2, 3});
  sum.root_rank = 3;
  CHECK(Normalized(sum, rules.views).ranks.empty());
  CHECK(Normalized(sum, rules.views).root_rank == 0);  // A sum has no root.
  sum.ranks = Ranks({0, 1});
  CHECK(Normalized(sum, rules.views).ranks == Ranks({0, 1}));
  CHECK(Normalized(Gather(), rules.views).ranks == Ranks({0, 1, 2, 3}));
  // Joiners take no part in a side tensor, so it keeps its names.
  sum.ranks = Ranks({0, 1, 2, 3});
  sum.collective.side = true;
  CHECK(Normalized(sum, rules.views).ranks == Ranks({0, 1, 2, 3}));
}

TEST_CASE("Problem: a sound declaration has none", "[pipeline]") {
  const Rules rules;
  CHECK(rules.ProblemOf(Spec("w", 250)) == "");
  CHECK(rules.ProblemOf(Gather()) == "");
  CHECK(Rules(false).ProblemOf(Spec("w", 4)) == "");
}

TEST_CASE("Problem: before the first view nobody knows the ranks of a gather", "[pipeline]") {
  CHECK_THAT(Rules(false).ProblemOf(Gather()), Contains("the job has not begun"));
}

TEST_CASE("Problem: a tensor is no larger than the agent allows", "[pipeline]") {
  const Rules rules;
  CHECK_THAT(rules.ProblemOf(Spec("w", 251)), Contains("f32[251] sum is larger than 1000"));
  // 16 parts, each of them small enough.
  TensorSpec exchange = Gather();
  exchange.collective.gives = Share::kRow;
  exchange.collective.gets = Share::kColumn;
  CHECK_THAT(rules.ProblemOf(exchange), Contains("split it"));
}

TEST_CASE("Problem: the ranks of a group are in order, and exist", "[pipeline]") {
  const Rules rules;
  TensorSpec spec = Spec("w", 4);
  spec.ranks = Ranks({0, 2, 1});
  CHECK_THAT(rules.ProblemOf(spec), Contains("rank 1 comes after rank 2"));
  spec.ranks = Ranks({0, 0});
  CHECK_THAT(rules.ProblemOf(spec), Contains("each once"));
  spec.ranks = Ranks({0, 4});
  CHECK_THAT(rules.ProblemOf(spec), Contains("there is no rank 4; the job has ranks 0 to 3"));
}

TEST_CASE("Problem: the root and the rank that declares are in the group", "[pipeline]") {
  const Rules rules;
  TensorSpec spec = Spec("w", 4, DType::kF32, Op::kCopy, 3);
  spec.ranks = Ranks({0, 1});
  CHECK_THAT(rules.ProblemOf(spec),
             Contains("its root is rank 3") && Contains("broadcast from rank 3 among ranks 0, 1"));
  spec.ranks = Ranks({1, 3});
  CHECK_THAT(rules.ProblemOf(spec), Contains("rank 0 is not among the ranks that take part"));
}

TEST_CASE("Problem: a side tensor names its ranks, and a standby has no other tensors",
          "[pipeline]") {
  Rules rules;
  TensorSpec side = Spec("s", 4);
  side.collective.side = true;
  CHECK_THAT(rules.ProblemOf(side), Contains("name the ranks that take part in it"));

  view::View view = MakeView(1, {2, 2}, 1);
  view.members[0].standby = true;
  Rules standby(false);
  standby.views.Enter(view);
  CHECK_THAT(standby.ProblemOf(Spec("w", 4)), Contains("node 0 is a standby"));
}

TEST_CASE("Describe: a tensor is described with its root and the first of its ranks",
          "[pipeline]") {
  CHECK(Describe(Spec("w", 4)) == "f32[4] sum");
  TensorSpec spec = Spec("w", 4);
  spec.collective.gets = Share::kRoot;
  spec.root_rank = 2;
  CHECK(Describe(spec) == "f32[4] reduce sum to rank 2");
  spec = Spec("w", 4);
  spec.ranks = Ranks({0, 1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(Describe(spec) == "f32[4] sum among ranks 0, 1, 2, 3, 4, 5, 6, 7, ...");
}

}  // namespace
}  // namespace talweg::pipeline
