// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/tensor_table.h"

#include <set>

#include <catch2/catch.hpp>

#include "libs/pipeline/core_parts_fixture.h"

namespace talweg::pipeline {
namespace {

using testing::CoreParts;
using testing::Key;
using testing::MakeView;
using testing::Spec;

TEST_CASE("TensorTable: a tensor is found by its place and by its name", "[pipeline]") {
  TensorTable table(2);
  AgentTensor& first = table.Add({Spec("a", 4), {.on_device = true}}, LocalRank{1});
  AgentTensor& second = table.Add({Spec("b", 4)}, LocalRank{0});
  CHECK(first.index == TensorIndex{0});
  CHECK(second.index == TensorIndex{1});
  CHECK(first.declared_by == LocalRank{1});
  CHECK(first.wishes == MemoryWishes{.on_device = true});
  CHECK(first.told.size() == 2);
  CHECK(table.Find(Key("b")) == &second);
  CHECK(table.Find(TensorIndex{0}) == &first);
  CHECK(table.Find(TensorIndex{2}) == nullptr);
  CHECK(table.Find(Key("c")) == nullptr);
}

TEST_CASE("TensorTable: a tensor is half pushed until the node has contributed", "[pipeline]") {
  CoreParts parts(MakeView(1, {3, 1}, 1), 3);
  TensorSpec spec = Spec("w", 4);
  spec.ranks = {Rank{0}, Rank{2}, Rank{3}};
  AgentTensor& tensor = parts.Open(spec);
  TensorTable& table = parts.tensors;
  const std::set<TensorIndex> none;
  const std::set<TensorIndex> half = {tensor.index};
  CHECK(table.half_pushed() == none);
  table.AddPush(tensor, LocalRank{2});
  CHECK(table.half_pushed() == half);
  table.CheckInvariants();
  SECTION("all ranks of the group have pushed") { table.AddPush(tensor, LocalRank{0}); }
  SECTION("the round is over") { table.OpenNextRound(tensor); }
  SECTION("the round goes on without the rest") {
    tensor.spec.collective.patience_ms = 10;
    table.LeaveOutMissing(tensor);
    CHECK(tensor.LeavesOut(LocalRank{0}));
    CHECK_FALSE(tensor.LeavesOut(LocalRank{1}));  // It takes no part in the tensor.
    table.AddPush(tensor, LocalRank{0});          // Late.
  }
  CHECK(table.half_pushed() == none);
  table.CheckInvariants();
}

TEST_CASE("TensorTable: it knows whether any tensor awaits its decision", "[pipeline]") {
  CoreParts parts(MakeView(1, {1, 1}, 1));
  parts.Open(Spec("a", 4));
  AgentTensor& tensor = parts.Open(Spec("b", 4));
  CHECK_FALSE(parts.tensors.AnyAwaitsDecision());
  tensor.AwaitDecision({.held = Round{0}});
  CHECK(parts.tensors.AnyAwaitsDecision());
  tensor.ResumeOpenRound();
  CHECK_FALSE(parts.tensors.AnyAwaitsDecision());
}

}  // namespace
}  // namespace talweg::pipeline
