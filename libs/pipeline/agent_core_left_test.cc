// SPDX-License-Identifier: Apache-2.0
// Ranks and members that leave, or die.
#include <vector>

#include <catch2/catch.hpp>

#include "libs/pipeline/agent_core_fixture.h"

namespace talweg::pipeline {
namespace {

using testing::Fixture;
using testing::Key;
using testing::MakeView;
using testing::Spec;

constexpr uint64_t kSecond = 1'000'000'000;

// Returns an owner's notice that it waits for node 1 in round 1 of a tensor.
wire::Waiting WaitingFor(const std::string& tensor, bool has_left) {
  wire::Waiting waiting{.key = Key(tensor),
                        .round = Round{1},
                        .waited_ns = 1,
                        .missing_nodes = {1},
                        .absent_ns = {0}};
  if (has_left) waiting.left_nodes = {1};
  return waiting;
}

TEST_CASE("AgentCore: a rank's death ends the job here, and names the rank", "[pipeline]") {
  Fixture f(1, 2);
  f.Start(MakeView(1, {1, 2}, 1));
  const Effects out = f.Leave(1, false, "killed by signal 9");
  const auto lost = f.Of<ReportLost>(out);
  REQUIRE(lost.size() == 1);
  CHECK(lost[0].rank == Rank{2});
  CHECK(lost[0].text.find("rank 2 (local rank 1 of node 1, pid 4001)") == 0);
  CHECK(lost[0].text.find("killed by signal 9") != std::string::npos);
  CHECK(f.Of<FailJob>(out).size() == 1);
  CHECK(f.Leave(1, false).empty());
  CHECK(f.Of<RanksDone>(f.Leave(0, true)).size() == 1);
}

TEST_CASE("AgentCore: ranks that leave cleanly end nothing unless somebody needs them",
          "[pipeline]") {
  Fixture f(0, 2);
  f.Start(MakeView(1, {2}, 0));
  f.Open(Spec("w", 100));
  CHECK(f.Leave(1, true).empty());
  const Effects out = f.Push(0, 0, 1);
  CHECK(f.Of<FailJob>(out).size() == 1);
  CHECK(f.Of<FailJob>(out)[0].text.find("which needs every rank") != std::string::npos);

  Fixture g(0, 2);
  g.Start(MakeView(1, {2}, 0));
  g.Open(Spec("w", 100));
  g.Push(0, 0, 1);
  CHECK(g.Of<FailJob>(g.Leave(1, true)).size() == 1);  // A round waited for it when it left.

  Fixture h(0, 2);
  h.Start(MakeView(1, {2}, 0));
  CHECK(h.Leave(0, true).empty());
  CHECK(h.Of<RanksDone>(h.Leave(1, true)).size() == 1);
  CHECK(h.Of<FailRank>(h.Join(0)).size() == 1);  // It cannot come back into this job.
}

TEST_CASE("AgentCore: a rank that leaves a group ends the group's tensors, and not the job",
          "[pipeline]") {
  Fixture f(0, 3);
  f.Start(MakeView(1, {3}, 0));
  TensorSpec spec = Spec("pair", 100);
  spec.ranks = {Rank{0}, Rank{1}};
  f.Declare(0, spec);
  f.Declare(1, spec);
  f.Allocated(0);
  SECTION("A rank waits when the other leaves") {
    f.Push(0, 0, 1);
    const Effects out = f.Leave(1, true);
    CHECK(f.Of<FailJob>(out).empty());
    const auto completed = f.Of<CompleteRound>(out);
    REQUIRE(completed.size() == 1);
    CHECK(completed[0].status == Status::kAborted);
    CHECK(completed[0].text.find("rank 1 (local rank 1 of node 0") != std::string::npos);
    CHECK(completed[0].text.find("which needs it") != std::string::npos);
  }
  SECTION("A rank pushes after the other has left") {
    CHECK(f.Leave(1, true).empty());
    const auto completed = f.Of<CompleteRound>(f.Push(0, 0, 1));
    REQUIRE(completed.size() == 1);
    CHECK(completed[0].status == Status::kAborted);
  }
  SECTION("A rank that has left is not waited for") { CHECK(f.Leave(2, true).empty()); }
  CHECK(f.member.views().phase() == Phase::kActive);
}

TEST_CASE("AgentCore: other nodes hear of a group's tensor that a rank which left has ended",
          "[pipeline]") {
  Fixture f(0, 3);
  f.Start(MakeView(1, {3, 1}, 1));
  TensorSpec spec = Spec("trio", 100);
  spec.ranks = {Rank{0}, Rank{1}, Rank{3}};
  f.Declare(0, spec);
  f.Declare(1, spec);
  f.AgreeTo(f.Allocated(0));
  f.Leave(1, true);
  wire::Waiting waiting = WaitingFor("trio", /*has_left=*/false);
  waiting.missing_nodes = {0};
  const auto awaited = [&] {
    return f.From<wire::Waiting>(0, wire::FrameType::kWaiting, {waiting});
  };
  std::string why;
  SECTION("A rank of its node pushes a round that needs it") {
    f.Push(0, 0, 1);
    why = ") pushed round 1";
  }
  SECTION("Only ranks of another node push it") {
    waiting.round = Round{2};
    CHECK(f.Of<FailTensor>(awaited()).empty());  // That round is not the open one.
    waiting.round = Round{1};
    CHECK(f.Of<FailTensor>(awaited()).size() == 1);
    why = "other nodes contributed to round 1";
  }
  const auto failed = f.Entries<wire::Failed>(f.Flush());
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].key == Key("trio"));
  CHECK(failed[0].code == wire::FailedCode::kAborted);
  CHECK(failed[0].text.find("rank 1 (local rank 1 of node 0") == 0);
  CHECK(failed[0].text.find(why) != std::string::npos);
  CHECK(f.Of<FailTensor>(awaited()).empty());  // Once.
  CHECK(f.Entries<wire::Failed>(f.Flush()).empty());
}

TEST_CASE("AgentCore: an owner that waits for this node ends nothing while its ranks are there",
          "[pipeline]") {
  Fixture f(0, 2);
  f.Start(MakeView(1, {2, 1}, 1));
  f.Open(Spec("w", 100));
  wire::Waiting waiting = WaitingFor("w", /*has_left=*/false);
  waiting.missing_nodes = {0};
  SECTION("None has left") {}
  SECTION("One has pushed and left") {
    f.Push(1, 0, 1);
    f.Leave(1, true);
  }
  CHECK(f.Of<FailJob>(f.From<wire::Waiting>(0, wire::FrameType::kWaiting, {waiting})).empty());
  f.Push(0, 0, 1);
}

TEST_CASE("AgentCore: a new view does not wait for a group's tensor that has ended", "[pipeline]") {
  Fixture f(0, 3);
  f.Start(MakeView(1, {3, 1}, 1));
  TensorSpec spec = Spec("pair", 100);
  spec.ranks = {Rank{0}, Rank{1}, Rank{3}};
  f.Declare(0, spec);
  f.Declare(1, spec);
  f.AgreeTo(f.Allocated(0));
  f.OnView(MakeView(2, {3, 1}, 1));
  SECTION("A rank leaves that the round needs") {
    f.Push(0, 0, 1);
    f.AgreeTo(f.AnswerAll());
    REQUIRE(f.member.views().phase() == Phase::kReporting);
    f.Leave(1, true);
  }
  SECTION("A round begins that needs a rank which has left") {
    f.Leave(1, true);
    f.AgreeTo(f.AnswerAll());
    REQUIRE(f.member.views().phase() == Phase::kReporting);
    f.Push(0, 0, 1);
  }
  SECTION("A member has left that the round needs") {
    f.Push(0, 0, 1);
    f.Push(1, 0, 1);
    f.AgreeTo(f.AnswerAll());
    REQUIRE(f.member.views().phase() == Phase::kReporting);
    f.member.OnMemberLeft({NodeRank{1}, Incarnation{101}}, "its ranks are done");
    f.From<wire::Waiting>(0, wire::FrameType::kWaiting, {WaitingFor("pair", /*has_left=*/true)});
  }
  CHECK(f.member.FindTensor(Key("pair"))->state == TensorState::kFailed);
  CHECK(f.member.views().phase() == Phase::kActive);
}

// Node 0 contributes to round 1 of "w", and hears that node 1 has left.
std::vector<wire::Contribute> ContributeAndLoseNode1(Fixture& f) {
  f.Start(MakeView(1, {1, 1}, 1));
  f.Open(Spec("w", 100));
  f.Push(0, 0, 1);
  auto sent = f.Entries<wire::Contribute>(f.Flush());
  f.member.OnMemberLeft({NodeRank{1}, Incarnation{101}}, "its ranks are done");
  return sent;
}

TEST_CASE("AgentCore: a round that needs a member which has left fails the job", "[pipeline]") {
  Fixture f;
  ContributeAndLoseNode1(f);
  CHECK(f.member.views().phase() == Phase::kActive);  // Node 1 may have contributed before it left.
  const Effects out =
      f.From<wire::Waiting>(0, wire::FrameType::kWaiting, {WaitingFor("w", /*has_left=*/true)});
  REQUIRE(f.Of<FailJob>(out).size() == 1);
  CHECK(f.Of<FailJob>(out)[0].text.find("node 1 has left") != std::string::npos);
}

TEST_CASE("AgentCore: an old notice does not fail a round whose member gave its part and left",
          "[pipeline]") {
  Fixture f;
  const auto sent = ContributeAndLoseNode1(f);
  // The frame was in the connection for long.
  const Effects out =
      f.From<wire::Waiting>(0, wire::FrameType::kWaiting, {WaitingFor("w", /*has_left=*/false)});
  CHECK(f.Of<FailJob>(out).empty());
  REQUIRE(sent.size() == 1);
  CHECK(f.Of<CompleteRound>(f.ResultOf(sent[0], 2)).size() == 1);
}

TEST_CASE("AgentCore: a long absence of a member that left fails its round, even without a goodbye",
          "[pipeline]") {
  Fixture f;
  ContributeAndLoseNode1(f);
  wire::Waiting waiting = WaitingFor("w", /*has_left=*/false);
  waiting.absent_ns = {9 * kSecond};
  CHECK(f.Of<FailJob>(f.From<wire::Waiting>(0, wire::FrameType::kWaiting, {waiting})).empty());
  waiting.absent_ns = {10 * kSecond};
  CHECK(f.Of<FailJob>(f.From<wire::Waiting>(0, wire::FrameType::kWaiting, {waiting})).size() == 1);
}

TEST_CASE("AgentCore: a group's round that needs a member which has left fails its tensor",
          "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1, 1}, 1));
  TensorSpec spec = Spec("pair", 100);
  spec.ranks = {Rank{0}, Rank{1}};
  f.Open(spec);
  f.Push(0, 0, 1);
  f.Flush();
  f.member.OnMemberLeft({NodeRank{1}, Incarnation{101}}, "its ranks are done");
  const Effects out =
      f.From<wire::Waiting>(0, wire::FrameType::kWaiting, {WaitingFor("pair", /*has_left=*/true)});
  CHECK(f.Of<FailJob>(out).empty());
  const auto completed = f.Of<CompleteRound>(out);
  REQUIRE(completed.size() == 1);
  CHECK(completed[0].status == Status::kAborted);
  CHECK(completed[0].text.find("node 1 has left") != std::string::npos);
  CHECK(f.member.views().phase() == Phase::kActive);
}

TEST_CASE("AgentCore: a side tensor waits for the view without the member that has left",
          "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  TensorSpec spec = Spec("state", 100);
  spec.collective.side = true;
  spec.ranks = {Rank{0}, Rank{1}};
  f.Open(spec);
  f.Push(0, 0, 1);
  f.Flush();
  f.member.OnMemberLeft({NodeRank{1}, Incarnation{101}}, "its ranks are done");
  const Effects out =
      f.From<wire::Waiting>(0, wire::FrameType::kWaiting, {WaitingFor("state", /*has_left=*/true)});
  CHECK(f.Of<FailJob>(out).empty());
}

}  // namespace
}  // namespace talweg::pipeline
