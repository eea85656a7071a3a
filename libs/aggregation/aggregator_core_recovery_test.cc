// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include "libs/aggregation/aggregator_core_fixture.h"

// Reports, decisions and the finishing of open rounds (docs/protocol.md, section 6).
namespace talweg::aggregation {
namespace {

using wire::Form;
using wire::Mode;
using wire::Verdict;
constexpr uint64_t kCount = 10'000;

wire::Report Held(const std::string& name, uint64_t held, uint64_t held_epoch,
                  uint64_t partial_epoch = 0, std::vector<uint64_t> slices = {}) {
  return {.key = KeyOf(name),
          .held = Round{held},
          .held_epoch = Epoch{held_epoch},
          .contributed = Round{held + 1},
          .partial_epoch = Epoch{partial_epoch},
          .slices = std::move(slices)};
}

// One of three nodes dies: the others fence, declare and report.
struct Recovery {
  JobFixture f{{1, 1, 1}};

  explicit Recovery(Op op = Op::kSum, uint32_t root = 0) {
    f.StartWith("w", kCount, op, root);
    f.NextView({2});
    f.effects_seen.clear();
  }
  void Enter(uint32_t node, std::vector<wire::Report> reports, Op op = Op::kSum,
             uint32_t root = 0) {
    f.SayFence(node);
    f.SayDeclare(node, f.DeclareOf("w", node, kCount, DType::kF32, op, root));
    f.SayReport(node, std::move(reports));
  }
  wire::Decision OnlyDecision(uint32_t node) {
    const auto decisions = f.Sent<wire::Decision>(Conn(node));
    REQUIRE(decisions.size() == 1);
    return decisions[0];
  }
};

TEST_CASE("AggregatorCore: an open round is summed anew among the survivors", "[aggregation]") {
  Recovery r;
  r.Enter(0, {Held("w", 6, 1)});
  CHECK(r.f.Sent<wire::Decision>(Conn(0)).empty());
  CHECK(r.f.Sent<wire::Declared>(Conn(0)).empty());
  r.Enter(1, {Held("w", 6, 1)});
  for (const uint32_t node : {0u, 1u}) {
    CHECK(r.OnlyDecision(node).verdict == Verdict::kRedo);
    CHECK(r.OnlyDecision(node).round == Round{7});
    CHECK(r.OnlyDecision(node).key == KeyOf("w"));
    REQUIRE(r.f.Sent<wire::Declared>(Conn(node)).size() == 1);
    CHECK(r.f.Sent<wire::Declared>(Conn(node))[0].held == Round{6});
  }
  r.f.Contribute(0, "w", 7);
  r.f.Contribute(1, "w", 7);
  REQUIRE(r.f.Seen<Sum>().size() == 1);
  CHECK(r.f.Seen<Sum>()[0].inputs.size() == 2);
  CHECK(r.f.Results(0)[0].entry.sum_epoch == Epoch{2});
}

TEST_CASE("AggregatorCore: a round that somebody holds is finished by copying", "[aggregation]") {
  Recovery r;
  r.Enter(0, {Held("w", 6, 1)});
  r.Enter(1, {Held("w", 7, 1)});
  const wire::Decision decision = r.OnlyDecision(0);
  CHECK(decision.verdict == Verdict::kFinish);
  CHECK(decision.round == Round{7});
  CHECK(decision.sum_epoch == Epoch{1});
  CHECK(decision.sources == std::vector<uint16_t>{1});
  CHECK(r.f.Sent<wire::Declared>(Conn(0))[0].held == Round{7});

  wire::Contribute wants = r.f.Part("w", 7);
  wants.mode = Mode::kCopy;
  wants.form = Form::kEmpty;
  r.f.Contribute(0, wants);
  wire::Contribute source = r.f.Part("w", 7);
  source.mode = Mode::kCopy;
  source.wants_result = false;
  source.sum_epoch = Epoch{1};
  source.rank_count = 3;
  r.f.Contribute(1, source);
  REQUIRE(r.f.Results(0).size() == 1);
  CHECK(r.f.Results(0)[0].entry.sum_epoch == Epoch{1});
  CHECK(r.f.Results(0)[0].entry.rank_count == 3);
  CHECK(r.f.Results(0)[0].entry.form == Form::kWritten);
  CHECK(r.f.Results(1)[0].entry.form == Form::kEmpty);
  // Then the next round follows as usual.
  r.f.Contribute(0, "w", 8);
  r.f.Contribute(1, "w", 8);
  CHECK(r.f.Seen<Sum>().size() == 1);
}

TEST_CASE("AggregatorCore: a copy of an epoch to come is refused", "[aggregation]") {
  Recovery r;
  r.Enter(0, {Held("w", 6, 1)});
  r.Enter(1, {Held("w", 7, 1)});
  wire::Contribute source = r.f.Part("w", 7);
  source.mode = Mode::kCopy;
  source.sum_epoch = Epoch{3};
  r.f.Contribute(1, source);
  CHECK(r.f.RefusedCount(wire::RefusedReason::kWrongMode) == 1);
}

TEST_CASE("AggregatorCore: survivors' slices of one epoch that cover the tensor finish it",
          "[aggregation]") {
  Recovery r;
  r.Enter(0, {Held("w", 6, 1, 1, {1})});
  r.Enter(1, {Held("w", 6, 1)});
  CHECK(r.OnlyDecision(1).verdict == Verdict::kFinish);
  CHECK(r.OnlyDecision(1).sources == std::vector<uint16_t>{0});
}

TEST_CASE("AggregatorCore: a broadcast whose root is gone is aborted and says so",
          "[aggregation]") {
  Recovery r(Op::kCopy, 2);
  r.Enter(0, {Held("w", 6, 1)}, Op::kCopy, wire::kNoRank);
  r.Enter(1, {Held("w", 6, 1)}, Op::kCopy, wire::kNoRank);
  CHECK(r.OnlyDecision(0).verdict == Verdict::kAbort);
  CHECK(r.OnlyDecision(0).round == Round{7});
  CHECK(r.OnlyDecision(0).text.find("tensor 'w'") != std::string::npos);
  CHECK(r.f.Sent<wire::Declared>(Conn(0))[0].held == Round{7});
}

TEST_CASE("AggregatorCore: an aborted round is aborted for those who had not heard",
          "[aggregation]") {
  Recovery r;
  r.Enter(0, {Held("w", 6, 1)});
  r.Enter(1, {Held("w", 7, 0)});
  CHECK(r.OnlyDecision(0).verdict == Verdict::kAbort);
}

TEST_CASE(
    "AggregatorCore: a root keeps its broadcast over a view in which its rank has another number",
    "[aggregation]") {
  JobFixture f({1, 1, 1});
  f.StartWith("w", kCount, Op::kCopy, /*root=*/2);
  f.NextView({0});
  for (const uint32_t node : {1u, 2u}) {
    f.SayFence(node);
    f.SayDeclare(node, f.DeclareOf("w", node, kCount, DType::kF32, Op::kCopy, 1));
    f.SayReport(node, {Held("w", 3, 1)});
  }
  CHECK(f.job.counters().tensors_poisoned == 0);
  CHECK(f.Sent<wire::Decision>(Conn(1))[0].verdict == Verdict::kRedo);
  wire::Contribute source = f.Part("w", 4);
  source.mode = Mode::kCopy;
  f.Contribute(2, source);
  CHECK(f.RefusedCount(wire::RefusedReason::kWrongMode) == 0);
}

TEST_CASE("AggregatorCore: reports that cannot be true make the tensor unusable, with a reason",
          "[aggregation]") {
  Recovery r;
  SECTION("Two members hold rounds that are two apart") {
    r.Enter(0, {Held("w", 5, 1)});
    r.Enter(1, {Held("w", 7, 1)});
  }
  SECTION("A member reports a slice that does not exist") {
    r.Enter(0, {Held("w", 6, 1, 1, {2})});
    r.Enter(1, {Held("w", 6, 1)});
  }
  CHECK(r.f.Sent<wire::Decision>(Conn(0)).empty());
  REQUIRE(r.f.Sent<wire::Failed>(Conn(1)).size() == 1);
  CHECK(r.f.Sent<wire::Failed>(Conn(1))[0].code == wire::FailedCode::kAborted);
  // No member has declared anything wrong.
  CHECK(r.f.Sent<wire::Declared>(Conn(1)).back().status == wire::DeclaredStatus::kAborted);
  CHECK(r.f.job.counters().contradictions == 1);
}

TEST_CASE("AggregatorCore: decisions wait for every member's whole report", "[aggregation]") {
  Recovery r;
  r.Enter(0, {Held("w", 6, 1)});
  r.f.SayFence(1);
  r.f.SayDeclare(1, r.f.DeclareOf("w", 1, kCount));
  r.f.SayReport(1, {}, 0, wire::kFlagMore);
  CHECK(r.f.Sent<wire::Decision>(Conn(0)).empty());
  r.f.SayReport(1, {Held("w", 6, 1)}, 0, wire::kFlagMore);
  CHECK(r.f.Sent<wire::Decision>(Conn(0)).empty());
  r.f.SayReport(1, {});
  CHECK(r.OnlyDecision(0).verdict == Verdict::kRedo);
  CHECK(r.OnlyDecision(1).verdict == Verdict::kRedo);
}

TEST_CASE("AggregatorCore: a member without the tensor is not needed, and goes on with the others",
          "[aggregation]") {
  Recovery r;
  r.Enter(0, {Held("w", 6, 1)});
  r.f.SayFence(1);
  r.f.SayReport(1);
  CHECK(r.OnlyDecision(0).verdict == Verdict::kRedo);
  CHECK(r.f.Sent<wire::Decision>(Conn(1)).empty());
  r.f.SayDeclare(1, r.f.DeclareOf("w", 1, kCount));
  REQUIRE(r.f.Sent<wire::Declared>(Conn(1)).size() == 1);
  CHECK(r.f.Sent<wire::Declared>(Conn(1))[0].held == Round{6});
}

TEST_CASE("AggregatorCore: a connection that breaks after the report gets the decision again",
          "[aggregation]") {
  Recovery r;
  r.Enter(0, {Held("w", 6, 1)});
  r.f.job.OnDisconnect(Conn(0), r.f.effects);
  r.f.Perform();
  r.Enter(1, {Held("w", 6, 1)});
  CHECK(r.OnlyDecision(1).verdict == Verdict::kRedo);  // Its report remains valid.
  r.f.SayHello(0, 1);
  r.f.SayDeclare(0, r.f.DeclareOf("w", 0, kCount), 1);
  CHECK(r.f.Sent<wire::Declared>(Conn(0, 1)).size() == 1);
  r.f.SayReport(0, {Held("w", 6, 1)}, 1);
  REQUIRE(r.f.Sent<wire::Decision>(Conn(0, 1)).size() == 1);
  CHECK(r.f.Sent<wire::Decision>(Conn(0, 1))[0] == r.OnlyDecision(1));
  CHECK(r.f.job.counters().decisions_again == 1);
  r.f.Contribute(0, r.f.Part("w", 7), 1);
  r.f.Contribute(1, "w", 7);
  CHECK(r.f.Seen<Sum>().size() == 1);
}

TEST_CASE("AggregatorCore: a decision stands when all connections broke before it and are back",
          "[aggregation]") {
  Recovery r;
  r.Enter(0, {Held("w", 6, 1)});
  r.f.job.OnDisconnect(Conn(0), r.f.effects);
  r.f.Perform();
  r.f.SayFence(1);
  r.f.SayReport(1);
  // No member has declared it now: its memory goes, the decision stays.
  CHECK(r.f.allocated.empty());
  r.f.SayHello(0, 1);
  r.f.SayDeclare(0, r.f.DeclareOf("w", 0, kCount), 1);
  r.f.SayReport(0, {Held("w", 6, 1)}, 1);
  r.f.SayDeclare(1, r.f.DeclareOf("w", 1, kCount));
  REQUIRE(r.f.Sent<wire::Decision>(Conn(0, 1)).size() == 1);
  CHECK(r.f.allocated.size() == 3);
  r.f.Contribute(0, r.f.Part("w", 7), 1);
  r.f.Contribute(1, "w", 7);
  REQUIRE(r.f.Seen<Sum>().size() == 1);
  CHECK(r.f.Seen<Sum>()[0].result != AllocationId{0});
}

TEST_CASE("AggregatorCore: a report of a tensor that its member has not declared does not count",
          "[aggregation]") {
  Recovery r;
  r.Enter(0, {Held("w", 6, 1), Held("v", 9, 1)});
  r.Enter(1, {Held("w", 6, 1)});
  CHECK(r.f.Sent<wire::Decision>(Conn(0)).size() == 1);
  CHECK(r.f.job.counters().frames_unexpected == 1);
}

TEST_CASE(
    "AggregatorCore: a tensor that has failed at one member fails for all before anything is "
    "decided",
    "[aggregation]") {
  Recovery r;
  r.f.SayFence(0);
  r.f.SayDeclare(0, r.f.DeclareOf("w", 0, kCount));
  r.f.SayFailed(0, {.key = KeyOf("w"), .code = wire::FailedCode::kAborted, .text = "it is lost"});
  r.f.SayReport(0);
  r.Enter(1, {Held("w", 6, 1)});
  CHECK(r.f.Sent<wire::Decision>(Conn(1)).empty());
  REQUIRE(r.f.Sent<wire::Failed>(Conn(1)).size() == 1);
  CHECK(r.f.Sent<wire::Failed>(Conn(1))[0].code == wire::FailedCode::kAborted);
  CHECK(r.f.Sent<wire::Failed>(Conn(1))[0].text == "it is lost");
  // Our peers do not send these.
  r.f.SayFailed(1, {.key = KeyOf("v"), .text = "of a tensor that it has not declared"});
  r.f.SayFailed(1, {.key = KeyOf("w"), .code = wire::FailedCode::kJobFailed, .text = "the job"});
  CHECK(r.f.job.counters().frames_unexpected == 2);
}

TEST_CASE("AggregatorCore: a newer view begins the procedure again", "[aggregation]") {
  Recovery r;
  r.Enter(0, {Held("w", 6, 1)});
  r.f.NextView();
  r.f.effects_seen.clear();
  r.Enter(1, {Held("w", 6, 1)});
  CHECK(r.f.Sent<wire::Decision>(Conn(1)).empty());
  r.Enter(0, {Held("w", 6, 1)});
  CHECK(r.OnlyDecision(0).verdict == Verdict::kRedo);
}

}  // namespace
}  // namespace talweg::aggregation
