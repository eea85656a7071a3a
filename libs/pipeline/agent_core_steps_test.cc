// SPDX-License-Identifier: Apache-2.0
// The ends of steps, where nodes enter, and the views that ranks follow.
#include <cstdint>
#include <optional>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/pipeline/agent_core_fixture.h"

namespace talweg::pipeline {
namespace {

using testing::Fixture;
using testing::MakeView;
using testing::Spec;

struct Stepping : Fixture {
  using Fixture::Fixture;

  Effects Quiesce(uint64_t id, uint64_t step) {
    return Do([&](Effects& out) { member.OnQuiesce(id, step, now_ns, out); });
  }
  Effects RanksStop(const std::vector<uint64_t>& ended) {
    return Do([&](Effects& out) { member.OnRanksStop(ended, out); });
  }
  Effects AtBoundary(uint32_t rank, uint64_t steps) {
    return Do([&](Effects& out) { member.OnRankAtBoundary(LocalRank{rank}, steps, now_ns, out); });
  }
  static std::optional<uint64_t> StopOf(const Effects& effects) {
    const auto stops = Of<StopRanks>(effects);
    REQUIRE(stops.size() == 1);
    return stops[0].steps;
  }
};

TEST_CASE("AgentCore: ranks stop where they are, and then again where all of them are",
          "[pipeline]") {
  Stepping f(0, 2);
  f.Start(MakeView(1, {2, 1}, 1));
  f.Open(Spec("w", 10));
  f.Push(0, 0, 1);
  CHECK(Stepping::StopOf(f.Quiesce(5, 0)) == 0);
  // The answer comes at once, whatever rounds are open.
  const auto first = f.Of<Quiesced>(f.RanksStop({3, 2}));
  REQUIRE(first.size() == 1);
  CHECK(first[0].id == 5);
  CHECK(first[0].step == 4);  // Rank 0 has ended step 3, and may be in the next one.
  CHECK(f.Of<Quiesced>(f.RanksStop({3, 2})).empty());

  CHECK(Stepping::StopOf(f.Quiesce(6, 4)) == 4);
  f.Push(1, 0, 1);
  const Effects reduces = f.Flush();
  for (const ReduceSlice& reduce : f.Of<ReduceSlice>(reduces)) f.Reduced(reduce.ticket);
  const Effects sent = f.Flush();
  CHECK(f.Of<Quiesced>(f.AtBoundary(0, 4)).empty());
  CHECK(f.Of<Quiesced>(f.AtBoundary(1, 4)).empty());  // A round is open.
  const auto second = f.Of<Quiesced>(f.Results(sent));
  REQUIRE(second.size() == 1);
  CHECK(second[0].id == 6);
  CHECK(second[0].step == 4);

  SECTION("A view lets the ranks go on") {
    CHECK(Stepping::StopOf(f.OnView(MakeView(2, {2, 1, 1}, 1))) == std::nullopt);
    // No rank stops any more.
    CHECK(f.Do([&](Effects& out) { f.member.OnResume(6, f.now_ns, out); }).empty());
    CHECK(f.Of<FailRank>(f.Push(0, 0, 2)).empty());
  }
  SECTION("The scheduler's word about this quiesce lets the ranks go on") {
    CHECK(f.Do([&](Effects& out) { f.member.OnResume(5, f.now_ns, out); }).empty());
    CHECK(Stepping::StopOf(f.Do([&](Effects& out) { f.member.OnResume(6, f.now_ns, out); })) ==
          std::nullopt);
    CHECK(f.Of<FailRank>(f.Push(0, 0, 2)).empty());
  }
  SECTION("A rank that waits pushes nothing") {
    const auto failed = f.Of<FailRank>(f.Push(0, 0, 2));
    REQUIRE(failed.size() == 1);
    CHECK(failed[0].text.find("while it waits at the end of step 4") != std::string::npos);
  }
  SECTION("A rank that has left is not waited for") {
    f.Quiesce(7, 0);
    f.RanksStop({4, 4});
    f.Quiesce(8, 5);
    CHECK(f.Of<Quiesced>(f.AtBoundary(0, 5)).empty());
    CHECK(f.Of<Quiesced>(f.Leave(1, true)).size() == 1);
  }
}

TEST_CASE("AgentCore: a rank that stopped too early goes on, and counts when it comes again",
          "[pipeline]") {
  Stepping f(0, 2);
  f.Start(MakeView(1, {2, 1}, 1));
  f.Quiesce(5, 0);
  f.RanksStop({1, 1});
  f.AtBoundary(0, 2);
  f.Quiesce(6, 3);
  CHECK(f.Of<Quiesced>(f.AtBoundary(1, 3)).empty());
  CHECK(f.Of<Quiesced>(f.AtBoundary(0, 3)).size() == 1);
}

TEST_CASE("AgentCore: a member that came at a later step counts on from there", "[pipeline]") {
  Stepping f;
  view::View view = MakeView(4, {1, 1}, 1);
  view.steps = 100;
  f.Start(view);
  CHECK(f.member.views().steps_base() == 100);
  f.Quiesce(5, 0);
  CHECK(f.Of<Quiesced>(f.RanksStop({2}))[0].step == 103);
  CHECK(Stepping::StopOf(f.Quiesce(6, 105)) == 5);
  CHECK(f.Of<Quiesced>(f.AtBoundary(0, 4)).empty());
  CHECK(f.Of<Quiesced>(f.AtBoundary(0, 5)).size() == 1);
}

TEST_CASE("AgentCore: a quiesce after a view is answered in that view", "[pipeline]") {
  Stepping f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.OnView(MakeView(2, {1, 1}, 1));
  f.Quiesce(1, 0);
  CHECK(f.Of<Quiesced>(f.RanksStop({0})).size() == 1);  // While it fences, it can say where it is.
  f.Quiesce(2, 1);
  CHECK(f.Of<Quiesced>(f.AtBoundary(0, 1)).empty());
  CHECK(f.Of<Quiesced>(f.AnswerAll()).size() == 1);
}

TEST_CASE("AgentCore: ranks have the numbers of the view that they follow", "[pipeline]") {
  Stepping f(2);
  view::View first = MakeView(1, {1, 1, 1}, 1);
  first.members.erase(first.members.begin() + 1);  // Nodes 0 and 2.
  f.Start(first);
  CHECK(f.member.views().GlobalRank(LocalRank{0}) == Rank{1});
  TensorSpec spec = Spec("b", 10, DType::kF32, Op::kCopy, 1);
  f.Open(spec);
  f.OnView(MakeView(2, {1, 1, 1}, 1));
  f.AgreeTo(f.AnswerAll());
  const auto follow = [&](uint64_t epoch) {
    bool ok = false;
    f.Do([&](Effects& out) { ok = f.member.OnRanksFollow(Epoch{epoch}, out); });
    return ok;
  };
  CHECK_FALSE(follow(7));
  CHECK(f.member.views().GlobalRank(LocalRank{0}) == Rank{1});
  CHECK(follow(2));
  CHECK(f.member.views().GlobalRank(LocalRank{0}) == Rank{2});
  // The tensor's root is the same rank, with another number.
  CHECK(f.member.tensors()[0]->spec.root_rank == 2);
  CHECK(f.member.tensors()[0]->root_member.node == NodeRank{2});
  spec.root_rank = 2;
  CHECK(f.Of<FailTensor>(f.Declare(0, spec)).empty());
  spec.root_rank = 1;
  CHECK(f.Of<FailTensor>(f.Declare(0, spec)).size() == 1);
}

view::View WithStandby(uint64_t epoch, uint32_t node) {
  view::View view = MakeView(epoch, {1, 1, 1}, 1);
  view.members[node].standby = true;
  return view;
}

TensorSpec Side(const std::string& name, const std::vector<uint32_t>& ranks) {
  TensorSpec spec = Spec(name, 10);
  spec.collective.side = true;
  for (const uint32_t rank : ranks) spec.ranks.emplace_back(rank);
  return spec;
}

TEST_CASE("AgentCore: a standby's ranks take part in side tensors only", "[pipeline]") {
  Stepping f(1);
  f.Start(WithStandby(4, 1));
  CHECK(f.member.views().GlobalRank(LocalRank{0}) == Rank{2});
  const auto refused = f.Of<DeclareReply>(f.Declare(0, Spec("w", 10)));
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].status == Status::kInvalid);
  CHECK(refused[0].text.find("node 1 is a standby") != std::string::npos);
  CHECK(f.member.tensors().empty());
  // The group is node 0 and this node by their places, whatever their numbers.
  f.Open(Side("state", {0, 2}));
  CHECK(f.member.tensors()[0]->group ==
        view::Group{{NodeRank{0}, LocalRank{0}}, {NodeRank{1}, LocalRank{0}}});

  // A view brings the member into the steps; its ranks enter when they follow that view.
  view::View full = MakeView(5, {1, 1, 1}, 1);
  full.steps = 30;
  f.OnView(full);
  f.AgreeTo(f.AnswerAll());
  CHECK(f.member.views().steps_base() == 30);
  CHECK(f.Of<DeclareReply>(f.Declare(0, Spec("w", 10))).size() == 1);
  bool ok = false;
  f.Do([&](Effects& out) { ok = f.member.OnRanksFollow(Epoch{5}, out); });
  CHECK(ok);
  CHECK(f.member.views().GlobalRank(LocalRank{0}) == Rank{1});
  CHECK(f.member.tensors()[0]->spec.ranks == std::vector<Rank>{Rank{0}, Rank{1}});
  CHECK_FALSE(f.member.tensors()[0]->is_dead);
  CHECK(f.Of<DeclareReply>(f.Declare(0, Spec("w", 10))).empty());
  CHECK(f.member.tensors().size() == 2);
}

TEST_CASE("AgentCore: a declaration that is no valid side tensor is refused", "[pipeline]") {
  Stepping f;
  f.Start(WithStandby(4, 2));
  const auto text_of = [&](const TensorSpec& spec) {
    const auto replies = f.Of<DeclareReply>(f.Declare(0, spec));
    return replies.empty() ? std::string() : replies[0].text;
  };
  CHECK(text_of(Side("all", {})).find("name the ranks") != std::string::npos);
  CHECK(text_of(Side("none", {0, 3})).find("ranks 0 to 2") != std::string::npos);
  TensorSpec gather = Side("gather", {0, 2});
  gather.collective.op = Op::kCopy;
  gather.collective.gives = Share::kOwn;
  CHECK(text_of(gather).find("cannot be a side tensor") != std::string::npos);
  // Other tensors may not name a standby.
  TensorSpec named = Side("named", {0, 2});
  named.collective.side = false;
  CHECK(text_of(named).find("ranks 0 to 1") != std::string::npos);
}

TEST_CASE("AgentCore: rounds of side tensors go on at the end of a step", "[pipeline]") {
  Stepping f;
  f.Start(WithStandby(4, 2));
  f.Open(Side("state", {0, 2}));
  f.Quiesce(5, 0);
  f.RanksStop({0});
  f.Quiesce(6, 1);
  CHECK(f.Of<Quiesced>(f.AtBoundary(0, 1)).size() == 1);
  CHECK(f.Of<FailRank>(f.Push(0, 0, 1)).empty());
  // They may also be open when the node enters the steps.
  view::View full = MakeView(5, {1, 1, 1}, 1);
  full.steps = 1;
  f.OnView(full);
  CHECK_FALSE(f.member.tensors()[0]->is_dead);
}

TEST_CASE("AgentCore: a quiesce waits for other tensors, and not for a side tensor", "[pipeline]") {
  Stepping f;
  f.Start(WithStandby(4, 2));
  f.Open(Side("state", {0, 2}));
  f.Push(0, 0, 1);
  f.Quiesce(6, 1);
  CHECK(f.Of<Quiesced>(f.AtBoundary(0, 1)).size() == 1);
}

TEST_CASE("AgentCore: a side tensor dies with any of its ranks", "[pipeline]") {
  Stepping f;
  f.Start(WithStandby(4, 2));
  f.Open(Side("state", {0, 2}));
  view::View again = WithStandby(5, 2);
  again.members[2].id.incarnation = Incarnation{900};  // Another process is at that place.
  f.OnView(again);
  f.AnswerAll();
  CHECK(f.member.tensors()[0]->is_dead);
}

}  // namespace
}  // namespace talweg::pipeline
