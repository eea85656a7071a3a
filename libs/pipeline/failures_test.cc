// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/failures.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/pipeline/core_parts_fixture.h"

namespace talweg::pipeline {
namespace {

using testing::CoreParts;
using testing::MakeView;
using testing::Spec;

struct Failing : CoreParts {
  Failing() : CoreParts(MakeView(1, {2, 1}, 1), 2) {}

  // A tensor of the first rank here and of the other node's.
  AgentTensor& OpenForSome(const std::string& name) {
    TensorSpec spec = Spec(name, 8);
    spec.ranks = {Rank{0}, Rank{2}};
    return Open(spec);
  }
};

TEST_CASE("Failures: who waits for a tensor hears once that it has failed", "[pipeline]") {
  Failing f;
  AgentTensor& tensor = f.Open(Spec("w", 8));
  tensor.held = {.round = Round{4}, .sum_epoch = Epoch{1}};
  tensor.pending = {{LocalRank{1}, 70}};
  f.tensors.AddPush(tensor, LocalRank{0});
  f.failures.FailTensor(tensor, Status::kMismatch, "why", f.out);
  f.tensors.CheckInvariants();
  CHECK(tensor.state == TensorState::kFailed);
  CHECK(tensor.pushed_count == 0);
  REQUIRE(f.out.size() == 3);
  const auto replies = f.Of<DeclareReply>();
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].local_rank == LocalRank{1});
  CHECK(replies[0].request == 70);
  CHECK(replies[0].status == Status::kMismatch);
  CHECK(replies[0].text == "why");
  REQUIRE(f.Of<FailTensor>().size() == 1);
  CHECK(f.Of<FailTensor>()[0].status == Status::kMismatch);
  const auto ended = f.Of<CompleteRound>();
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].round == Round{5});
  CHECK(ended[0].status == Status::kMismatch);

  f.failures.FailTensor(tensor, Status::kInvalid, "another reason", f.out);
  CHECK(f.out.size() == 3);
  CHECK(tensor.failed_text == "why");
}

TEST_CASE("Failures: no round ends that nobody has pushed", "[pipeline]") {
  Failing f;
  f.failures.FailTensor(f.Open(Spec("w", 8)), Status::kMismatch, "why", f.out);
  CHECK(f.Of<FailTensor>().size() == 1);
  CHECK(f.Of<CompleteRound>().empty());
}

TEST_CASE("Failures: a tensor that is given up has failed for the ranks here alone", "[pipeline]") {
  Failing f;
  AgentTensor& tensor = f.Open(Spec("w", 8));
  tensor.held = {.round = Round{4}, .sum_epoch = Epoch{1}, .ranks_summed = 3};
  f.PushAll(tensor);
  f.failures.GiveUp(tensor, Status::kAborted, "why", f.out);
  CHECK(tensor.state == TensorState::kOpen);
  CHECK(tensor.held.round == Round{4});  // Another node may need it.
  CHECK(tensor.held.has_result());
  CHECK(f.Of<FailTensor>().size() == 1);
  REQUIRE(f.Of<CompleteRound>().size() == 1);
  CHECK(f.Of<CompleteRound>()[0].status == Status::kAborted);
  // Then an owner says that it has failed for all: the ranks know already.
  f.failures.FailTensor(tensor, Status::kMismatch, "for all", f.out);
  CHECK(tensor.state == TensorState::kFailed);
  CHECK(tensor.failed_status == Status::kMismatch);
  CHECK(f.Of<FailTensor>().size() == 1);
  CHECK(f.Of<CompleteRound>().size() == 1);
}

TEST_CASE("Failures: a rank that has left ends the job, or only a tensor of some ranks",
          "[pipeline]") {
  Failing f;
  AgentTensor& some = f.OpenForSome("some");
  AgentTensor& all = f.Open(Spec("all", 8));
  f.failures.FailForLeft(some, "rank 2 has left", f.out);
  CHECK(some.failed_status == Status::kAborted);
  CHECK(some.failed_text == "rank 2 has left");
  CHECK_FALSE(f.views.has_failed());
  CHECK(f.Of<ReportLost>().empty());
  f.failures.FailForLeft(all, "rank 2 has left", f.out);
  CHECK(f.views.failed_text() == "rank 2 has left");
  CHECK(f.Of<ReportLost>().size() == 1);
}

TEST_CASE("Failures: a job that fails ends every wait and everything under way", "[pipeline]") {
  Failing f;
  f.MakeOwnersReady();
  AgentTensor& tensor = f.Open(Spec("w", 8));
  tensor.pending = {{LocalRank{0}, 70}};
  f.Open(Spec("x", 8)).pending = {{LocalRank{1}, 71}};
  f.queue.Push({.tensor = tensor.key, .round = Round{1}});
  const uint64_t reducing = f.reductions.Begin({.tensor = tensor.index, .length_bytes = 8});
  const uint64_t decoding = f.reductions.BeginDecoding({.tensor = tensor.index});
  f.quiesce.Ask(7, 100, f.out);
  f.timer.Ask(5);
  f.out.clear();

  f.failures.FailJob("why", f.out);
  CHECK(f.views.has_failed());
  CHECK(f.views.failed_text() == "why");
  CHECK(f.queue.waiting_count() == 0);
  CHECK_FALSE(f.reductions.IsWanted(reducing));
  CHECK_FALSE(f.reductions.IsWanted(decoding));
  CHECK_FALSE(f.quiesce.is_asked());
  CHECK(f.Of<StopRanks>().empty());  // No rank goes on.
  CHECK(f.timer.next_ns() == TickTimer::kNever);
  CHECK(f.links.all().empty());
  CHECK(f.Of<Close>().size() == 1);
  const auto replies = f.Of<DeclareReply>();
  REQUIRE(replies.size() == 2);
  for (const DeclareReply& reply : replies) {
    CHECK(reply.status == Status::kJobFailed);
    CHECK(reply.text == "why");
  }
  REQUIRE(f.Of<FailJob>().size() == 1);
  CHECK(f.Of<FailJob>()[0].text == "why");
  CHECK(f.Of<ReportLost>().empty());  // The scheduler knows.
}

TEST_CASE("Failures: the first reason for which a job fails is the one that counts", "[pipeline]") {
  Failing f;
  f.failures.ReportAndFail("the first", f.out, Rank{1});
  const auto reports = f.Of<ReportLost>();
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].text == "the first");
  CHECK(reports[0].rank == Rank{1});
  const size_t count = f.out.size();
  f.failures.ReportAndFail("the second", f.out);
  f.failures.FailJob("the third", f.out);
  f.failures.CannotGoOn("the fourth", f.out);
  CHECK(f.out.size() == count);
  CHECK(f.views.failed_text() == "the first");
}

TEST_CASE("Failures: a node that cannot go on says which it is", "[pipeline]") {
  Failing f;
  f.failures.CannotGoOn("it has no room", f.out);
  REQUIRE(f.Of<ReportLost>().size() == 1);
  CHECK(f.Of<ReportLost>()[0].text == "node 0 cannot go on: it has no room");
  CHECK_FALSE(f.Of<ReportLost>()[0].rank.has_value());
  CHECK(f.views.failed_text() == "node 0 cannot go on: it has no room");
}

}  // namespace
}  // namespace talweg::pipeline
