// SPDX-License-Identifier: Apache-2.0
// New views: fences, reports, decisions and copy rounds (docs/protocol.md, section 6).
#include <algorithm>

#include <catch2/catch.hpp>

#include "libs/base/random.h"
#include "libs/pipeline/agent_core_fixture.h"

namespace talweg::pipeline {
namespace {

using testing::Fixture;
using testing::Key;
using testing::MakeView;
using testing::Spec;

// Starts a member in epoch 1, with three nodes and two aggregators, and a striped tensor of four
// slices. The member contributes. Returns the contributions.
std::vector<wire::Contribute> BeginRound(Fixture& f) {
  f.Start(MakeView(1, {1, 1, 1}, 2));
  f.Open(Spec("w", 64 * 1024));
  f.Push(0, 0, 1);
  const auto entries = f.Entries<wire::Contribute>(f.Flush());
  REQUIRE(entries.size() == 4);
  return entries;
}

// Returns a view without node 2.
view::View Survivors(uint64_t epoch = 2, uint32_t aggregators = 2) {
  return MakeView(epoch, {1, 1}, aggregators);
}

wire::Report OnlyReport(const Effects& effects) {
  const auto reports = Fixture::Entries<wire::Report>(effects);
  REQUIRE(reports.size() == 1);
  return reports[0];
}

TEST_CASE("AgentCore: a new view fences owners that stay, connects to new ones, and drops the rest",
          "[pipeline]") {
  Fixture f;
  BeginRound(f);
  view::View next = Survivors();
  next.aggregators[1].incarnation = Incarnation{299};  // The aggregator was restarted.
  const Effects out = f.OnView(next);
  CHECK(f.member.views().phase() == Phase::kFencing);
  CHECK(f.CountFrames(out, wire::FrameType::kFence) == 1);
  REQUIRE(f.Of<Close>(out).size() == 1);
  REQUIRE(f.Of<Connect>(out).size() == 1);
  CHECK(f.Of<Connect>(out)[0].aggregator == Incarnation{299});
  CHECK(f.OwnerAt(0).state == OwnerState::kFencing);
  // Nothing leaves while fencing.
  f.Push(0, 0, 2);
  CHECK(f.Flush().empty());
  // One answer is not enough.
  CHECK(f.From(0, wire::FrameType::kFenceAck).empty());
  const Effects frozen = f.AnswerAll();
  CHECK(f.member.views().phase() == Phase::kReporting);
  CHECK(f.CountFrames(frozen, wire::FrameType::kReport) == 2);
  CHECK(OnlyReport(frozen).contributed == Round{1});
  CHECK(f.member.views().present()->epoch == Epoch{2});
}

TEST_CASE("AgentCore: results that come before the fence's answer count", "[pipeline]") {
  Fixture f;
  const auto entries = BeginRound(f);
  f.OnView(Survivors());
  for (const wire::Contribute& entry : entries) f.ResultOf(entry, 3);
  CHECK(f.Of<CompleteRound>(f.all).size() == 1);
  const wire::Report report = OnlyReport(f.AnswerAll());
  CHECK(report.held == Round{1});
  CHECK(report.held_epoch == Epoch{1});
  CHECK(report.contributed == Round{1});
  CHECK(report.slices.empty());
}

TEST_CASE("AgentCore: a job of one view fails when a later view asks for memory that was given up",
          "[pipeline]") {
  Fixture f(0, 1, "", /*one_view=*/true);
  const bool is_open = GENERATE(true, false);
  const auto entries = BeginRound(f);
  if (!is_open) {
    for (const wire::Contribute& entry : entries) f.ResultOf(entry, 3);
  }
  f.OnView(Survivors());
  f.AnswerAll();
  const Effects out = is_open ? f.Decide("w", wire::Verdict::kRedo, 1)
                              : f.Decide("w", wire::Verdict::kFinish, 1, 1, {0, 0, 0, 0});
  REQUIRE(f.member.views().phase() == Phase::kFailed);
  const auto failed = f.Of<FailJob>(out);
  REQUIRE(failed.size() == 1);
  CHECK_THAT(failed[0].text, Catch::Contains("'w'") && Catch::Contains("round 1") &&
                                 Catch::Contains("--loss_policy=continue"));
}

TEST_CASE("AgentCore: a job of one view survives a later view between two rounds", "[pipeline]") {
  Fixture f(0, 1, "", /*one_view=*/true);
  for (const wire::Contribute& entry : BeginRound(f)) f.ResultOf(entry, 3);
  f.OnView(Survivors());
  f.AnswerAll();
  f.Decide("w", wire::Verdict::kRedo, 2);
  CHECK(f.member.views().phase() == Phase::kActive);
}

TEST_CASE("AgentCore: results after a fence's answer do not count", "[pipeline]") {
  Fixture f;
  const auto entries = BeginRound(f);
  f.OnView(Survivors());
  f.From(0, wire::FrameType::kFenceAck);
  for (const wire::Contribute& entry : entries) f.ResultOf(entry, 3);
  CHECK(f.Of<CompleteRound>(f.all).empty());
  const wire::Report report = OnlyReport(f.AnswerAll());
  CHECK(report.held == Round{0});
  CHECK(report.partial_epoch == Epoch{1});
  uint64_t expected = 0;
  const AgentTensor& tensor = *f.member.FindTensor(Key("w"));
  for (uint32_t i = 0; i < 4; ++i) {
    if (tensor.slices[i].owner == AggregatorIndex{1}) expected |= uint64_t{1} << i;
  }
  REQUIRE(report.slices.size() == 1);
  CHECK(report.slices[0] == expected);
}

TEST_CASE("AgentCore: Redo discards the results so far, and the member contributes again",
          "[pipeline]") {
  Fixture f;
  const auto entries = BeginRound(f);
  f.ResultOf(entries[0], 3);
  f.OnView(Survivors());
  f.AgreeTo(f.AnswerAll());
  CHECK(f.Flush().empty());  // The tensor is undecided.
  f.Decide("w", wire::Verdict::kRedo, 1);
  CHECK(f.member.views().phase() == Phase::kActive);
  const Effects sent = f.Flush();
  REQUIRE(f.Entries<wire::Contribute>(sent).size() == 4);
  CHECK(f.Entries<wire::Contribute>(sent)[0].mode == wire::Mode::kSum);
  // Sums of the old epoch do not count as results any more.
  f.Results(sent, 2, 1);
  CHECK(f.Of<CompleteRound>(f.all).empty());
  const auto complete = f.Of<CompleteRound>(f.Results(sent, 2));
  REQUIRE(complete.size() == 1);
  CHECK(complete[0].ranks_summed == 2);
  CHECK(complete[0].sum_epoch == Epoch{2});
}

TEST_CASE("AgentCore: a decision waits for the slots, and slots wait for the decision",
          "[pipeline]") {
  Fixture f;
  BeginRound(f);
  f.OnView(Survivors());
  const Effects frozen = f.AnswerAll();
  f.Decide("w", wire::Verdict::kRedo, 1);
  CHECK(f.Flush().empty());
  f.AgreeTo(frozen);
  CHECK(f.Entries<wire::Contribute>(f.Flush()).size() == 4);
}

TEST_CASE("AgentCore: a Finish takes the round from a member that holds it", "[pipeline]") {
  Fixture f;
  const auto entries = BeginRound(f);
  f.ResultOf(entries[1], 3);
  f.OnView(Survivors());
  f.AgreeTo(f.AnswerAll());
  f.Decide("w", wire::Verdict::kFinish, 1, 1, {1, 1, 1, 1});
  const Effects sent = f.Flush();
  const auto copies = f.Entries<wire::Contribute>(sent);
  REQUIRE(copies.size() == 4);
  for (const wire::Contribute& copy : copies) {
    CHECK(copy.mode == wire::Mode::kCopy);
    CHECK(copy.form == wire::Form::kEmpty);
    CHECK(copy.sum_epoch == Epoch{1});
    // The member already has that slice.
    CHECK(copy.wants_result == (copy.slice != entries[1].slice));
  }
  const auto complete = f.Of<CompleteRound>(f.Results(sent, 3, 1));
  REQUIRE(complete.size() == 1);
  CHECK(complete[0].ranks_summed == 3);
  CHECK(complete[0].sum_epoch == Epoch{1});
}

TEST_CASE("AgentCore: a holder gives its round in a Finish, and the next round waits for that",
          "[pipeline]") {
  Fixture f;
  const auto entries = BeginRound(f);
  for (const wire::Contribute& entry : entries) f.ResultOf(entry, 3);
  f.Push(0, 0, 2);
  f.OnView(Survivors());
  const Effects frozen = f.AnswerAll();
  CHECK(OnlyReport(frozen).held == Round{1});
  CHECK(OnlyReport(frozen).contributed == Round{2});
  f.AgreeTo(frozen);
  f.Decide("w", wire::Verdict::kFinish, 1, 1, {0, 0, 0, 0});
  const Effects sent = f.Flush();
  const auto copies = f.Entries<wire::Contribute>(sent);
  REQUIRE(copies.size() == 4);
  CHECK(copies[0].round == Round{1});
  CHECK(copies[0].rank_count == 3);
  CHECK_FALSE(copies[0].wants_result);
  REQUIRE(f.Of<WriteSlice>(sent).size() == 4);
  CHECK(f.Of<WriteSlice>(sent)[0].source.memory == Memory::kResult);
  CHECK(f.Of<WriteSlice>(sent)[0].source.round == Round{1});
  for (size_t i = 0; i < 3; ++i) f.ResultOf(copies[i], 3, 1);
  CHECK(f.Flush().empty());
  f.ResultOf(copies[3], 3, 1);
  const auto next = f.Entries<wire::Contribute>(f.Flush());
  REQUIRE(next.size() == 4);
  CHECK(next[0].round == Round{2});
  CHECK(next[0].mode == wire::Mode::kSum);
  CHECK(f.Of<CompleteRound>(f.all).size() == 1);  // Round 1 completes once.
}

TEST_CASE("AgentCore: a Finish takes slices that the survivors have between them", "[pipeline]") {
  Fixture f;
  const auto entries = BeginRound(f);
  f.ResultOf(entries[0], 3);
  f.OnView(Survivors());
  f.AgreeTo(f.AnswerAll());
  std::vector<uint16_t> sources(4, 1);
  sources[entries[0].slice.value()] = 0;
  f.Decide("w", wire::Verdict::kFinish, 1, 1, sources);
  const Effects sent = f.Flush();
  const auto copies = f.Entries<wire::Contribute>(sent);
  REQUIRE(copies.size() == 4);
  for (const wire::Contribute& copy : copies) {
    const bool mine = copy.slice == entries[0].slice;
    CHECK(copy.form == (mine ? wire::Form::kWritten : wire::Form::kEmpty));
    CHECK(copy.wants_result == !mine);
    CHECK(copy.rank_count == (mine ? 3 : 0));
  }
  CHECK(f.Of<CompleteRound>(f.Results(sent, 3, 1)).size() == 1);
}

TEST_CASE("AgentCore: a view that interrupts a Finish finds the slices of its sums", "[pipeline]") {
  Fixture f;
  const auto entries = BeginRound(f);
  f.ResultOf(entries[0], 3);
  f.OnView(Survivors());
  f.AgreeTo(f.AnswerAll());
  f.Decide("w", wire::Verdict::kFinish, 1, 1, {1, 1, 1, 1});
  const auto copies = f.Entries<wire::Contribute>(f.Flush());
  const auto other = std::find_if(copies.begin(), copies.end(),
                                  [](const wire::Contribute& copy) { return copy.wants_result; });
  f.ResultOf(*other, 3, 1);
  f.OnView(Survivors(3));
  const wire::Report report = OnlyReport(f.AnswerAll());
  CHECK(report.held == Round{0});
  CHECK(report.partial_epoch == Epoch{1});
  CHECK(report.slices[0] ==
        ((uint64_t{1} << entries[0].slice.value()) | (uint64_t{1} << other->slice.value())));
}

TEST_CASE("AgentCore: a view that interrupts a holder's Finish leaves it as it was", "[pipeline]") {
  Fixture f;
  const auto entries = BeginRound(f);
  for (const wire::Contribute& entry : entries) f.ResultOf(entry, 3);
  f.OnView(Survivors());
  f.AgreeTo(f.AnswerAll());
  f.Decide("w", wire::Verdict::kFinish, 1, 1, {0, 0, 0, 0});
  f.ResultOf(f.Entries<wire::Contribute>(f.Flush())[0], 3, 1);
  f.OnView(Survivors(3));
  const wire::Report report = OnlyReport(f.AnswerAll());
  CHECK(report.held == Round{1});
  CHECK(report.held_epoch == Epoch{1});
  CHECK(report.partial_epoch == Epoch{0});
}

TEST_CASE("AgentCore: a still newer view starts again, and older answers and decisions are ignored",
          "[pipeline]") {
  Fixture f;
  BeginRound(f);
  f.OnView(Survivors(2));
  f.OnView(Survivors(3));
  CHECK(f.From(0, wire::FrameType::kFenceAck, 2).empty());
  CHECK(f.From(1, wire::FrameType::kFenceAck, 2).empty());
  CHECK(f.member.views().phase() == Phase::kFencing);
  f.AgreeTo(f.AnswerAll());
  CHECK(f.member.views().phase() == Phase::kReporting);
  f.From<wire::Decision>(f.member.FindTensor(Key("w"))->primary.value(), wire::FrameType::kDecision,
                         {{.key = Key("w"), .round = Round{1}, .verdict = wire::Verdict::kRedo}},
                         2);
  CHECK(f.member.views().phase() == Phase::kReporting);
  CHECK(f.OnView(Survivors(2)).empty());  // The older view is ignored.
  f.Decide("w", wire::Verdict::kRedo, 1);
  CHECK(f.member.views().phase() == Phase::kActive);
  f.Decide("w", wire::Verdict::kRedo, 1);  // The repetition is ignored.
  CHECK(f.member.counters().redos == 1);
}

TEST_CASE("AgentCore: a view that comes while the member reports gets the same report again",
          "[pipeline]") {
  Fixture f;
  const auto entries = BeginRound(f);
  f.ResultOf(entries[0], 3);
  f.OnView(Survivors(2));
  const wire::Report first = OnlyReport(f.AnswerAll());
  f.OnView(Survivors(3));
  CHECK(OnlyReport(f.AnswerAll()) == first);
}

TEST_CASE("AgentCore: a connection that breaks while fencing is replaced, and greeted anew",
          "[pipeline]") {
  Fixture f;
  BeginRound(f);
  f.OnView(Survivors());
  f.From(0, wire::FrameType::kFenceAck);
  f.Broken(1);
  CHECK(f.member.views().phase() == Phase::kFencing);
  const Effects out = f.AnswerAll();
  CHECK(f.CountFrames(out, wire::FrameType::kHello) == 1);
  CHECK(f.member.views().phase() == Phase::kReporting);
}

TEST_CASE("AgentCore: a new view replaces a connection that was not welcomed yet", "[pipeline]") {
  Fixture f;
  f.OnView(MakeView(1, {1, 1}, 1));
  f.Connected(0);
  const ConnectionId old = f.OwnerAt(0).connection;
  const Effects out = f.OnView(MakeView(2, {1, 1}, 1));
  CHECK(f.Of<Close>(out)[0].connection == old);
  CHECK(f.Of<Connect>(out)[0].connection == f.OwnerAt(0).connection);
  CHECK(f.OwnerAt(0).connection != old);
}

TEST_CASE("AgentCore: after a reconnection undecided tensors are reported again", "[pipeline]") {
  Fixture f;
  BeginRound(f);
  f.OnView(Survivors());
  const wire::Report report = OnlyReport(f.AnswerAll());
  f.Broken(f.member.FindTensor(Key("w"))->primary.value());
  CHECK(OnlyReport(f.AnswerAll()) == report);
  f.Decide("w", wire::Verdict::kRedo, 1);
  f.Broken(f.member.FindTensor(Key("w"))->primary.value());
  const Effects again = f.AnswerAll();
  CHECK(f.Entries<wire::Report>(again).empty());
  CHECK(f.CountFrames(again, wire::FrameType::kReport) == 1);
}

TEST_CASE(
    "AgentCore: a slice that the new view cuts otherwise counts as held when all its bytes are",
    "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1, 1}, 2));
  f.Open(Spec("w", 48 * 1024));  // 192 KiB: two runs of 96 KiB, each in two slices of 48 KiB.
  f.Push(0, 0, 1);
  const auto entries = f.Entries<wire::Contribute>(f.Flush());
  REQUIRE(entries.size() == 4);
  for (const wire::Contribute& entry : entries) {
    if (entry.slice != SliceIndex{2}) f.ResultOf(entry, 3);
  }
  f.OnView(Survivors(2, 1));  // One owner: three slices of 64 KiB.
  const wire::Report report = OnlyReport(f.AnswerAll());
  CHECK(f.member.FindTensor(Key("w"))->slices.size() == 3);
  CHECK(report.slices[0] == 0b001);  // Bytes 96 to 144 KiB are missing.
}

TEST_CASE("AgentCore: a broadcast whose root is gone is aborted, and unusable from then on",
          "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1, 1}, 1));
  f.Open(Spec("b", 10, DType::kU8, Op::kCopy, 2));
  f.Open(Spec("c", 10, DType::kU8, Op::kCopy, 1));
  f.Push(0, 0, 1);
  f.Flush();
  view::View next = Survivors(2, 1);
  next.members[0].rank_count = 1;
  f.OnView(next);
  const Effects frozen = f.AnswerAll();
  const auto declares = f.Entries<wire::Declare>(frozen);
  REQUIRE(declares.size() == 2);
  CHECK(declares[0].root_rank == wire::kNoRank);
  CHECK(declares[1].root_rank == 1);
  f.AgreeTo(frozen);
  const auto aborted = f.Of<CompleteRound>(f.Decide("b", wire::Verdict::kAbort, 1));
  REQUIRE(aborted.size() == 1);
  CHECK(aborted[0].status == Status::kAborted);
  CHECK(f.member.FindTensor(Key("b"))->held.round == Round{1});
  // In another view, this member would report that round 1 has no bytes.
  const auto again = f.Of<CompleteRound>(f.Push(0, 0, 2));
  REQUIRE(again.size() == 1);
  CHECK(again[0].status == Status::kAborted);
  CHECK(again[0].text.find("is gone") != std::string::npos);
}

TEST_CASE("AgentCore: a broadcast that is given up still gives others the round before",
          "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1, 1}, 1));
  f.Open(Spec("b", 10, DType::kU8, Op::kCopy, 2));
  f.Push(0, 0, 1);
  f.Results(f.Flush(), 1);
  REQUIRE(f.member.FindTensor(Key("b"))->held.round == Round{1});
  f.OnView(Survivors(2, 1));
  f.AgreeTo(f.AnswerAll());
  f.Decide("b", wire::Verdict::kFinish, 1, 1, {0});
  f.Results(f.Flush(), 1, 1);
  const auto over = f.Of<CompleteRound>(f.Push(0, 0, 2));
  REQUIRE(over.size() == 1);
  CHECK(over[0].status == Status::kAborted);
  CHECK(f.Of<CompleteRound>(f.Push(0, 0, 3))[0].status == Status::kAborted);
  CHECK(f.Of<DeclareReply>(f.Declare(0, Spec("b", 10, DType::kU8, Op::kCopy, 2)))[0].status ==
        Status::kAborted);

  // Node 1 did not have all of round 1 when a third view came.
  f.OnView(Survivors(3, 1));
  const Effects frozen = f.AnswerAll();
  CHECK(f.Entries<wire::Failed>(frozen).empty());
  CHECK(OnlyReport(frozen).held == Round{1});
  CHECK(OnlyReport(frozen).held_epoch == Epoch{1});
  f.AgreeTo(frozen);
  f.Decide("b", wire::Verdict::kFinish, 1, 1, {0});
  const auto sent = f.Entries<wire::Contribute>(f.Flush());
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].round == Round{1});
  CHECK(sent[0].form == wire::Form::kInline);
  CHECK(sent[0].sum_epoch == Epoch{1});
}

TEST_CASE("AgentCore: a round that was aborted before a rank pushed it is over for that rank too",
          "[pipeline]") {
  Fixture f(0, 2);
  f.Start(MakeView(1, {2, 1}, 1));
  f.Open(Spec("b", 10, DType::kU8, Op::kCopy, 2));
  f.Push(0, 0, 1);
  f.OnView(MakeView(2, {2}, 1));
  f.AgreeTo(f.AnswerAll());
  f.Decide("b", wire::Verdict::kAbort, 1);
  const Effects late = f.Push(1, 0, 1);
  REQUIRE(f.Of<CompleteRound>(late).size() == 1);
  CHECK(f.Of<CompleteRound>(late)[0].status == Status::kAborted);
  CHECK(f.Of<FailRank>(late).empty());
}

TEST_CASE("AgentCore: several rounds that were aborted are all over for a rank that is late",
          "[pipeline]") {
  Fixture f(0, 2);
  f.Start(MakeView(1, {2, 1}, 1));
  f.Open(Spec("b", 10, DType::kU8, Op::kCopy, 2));
  f.Push(0, 0, 1);
  for (uint64_t round = 1; round <= 2; ++round) {
    f.OnView(MakeView(1 + round, {2}, 1));
    f.AgreeTo(f.AnswerAll());
    f.Decide("b", wire::Verdict::kAbort, round);
  }
  CHECK(f.member.FindTensor(Key("b"))->held.round == Round{2});
  for (uint64_t round = 1; round <= 2; ++round) {
    const Effects late = f.Push(1, 0, round);
    REQUIRE(f.Of<CompleteRound>(late).size() == 1);
    CHECK(f.Of<CompleteRound>(late)[0].round == Round{round});
    CHECK(f.Of<CompleteRound>(late)[0].status == Status::kAborted);
    CHECK(f.Of<FailRank>(late).empty());
  }
  CHECK(f.Of<FailRank>(f.Push(1, 0, 4)).size() == 1);
}

TEST_CASE("AgentCore: a joiner goes on with the round of the others", "[pipeline]") {
  Fixture f;
  f.Start(MakeView(5, {1, 1}, 1));
  f.Declare(0, Spec("w", 10));
  f.Allocated(0);
  const auto replies = f.Of<DeclareReply>(f.From<wire::Declared>(
      0, wire::FrameType::kDeclared, {{.key = Key("w"), .held = Round{41}}}));
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].held == Round{41});
  f.Push(0, 0, 42);
  const auto entries = f.Entries<wire::Contribute>(f.Flush());
  REQUIRE(entries.size() == 1);
  CHECK(entries[0].round == Round{42});
}

TEST_CASE("AgentCore: each view says again which round comes first, until a rank has been told",
          "[pipeline]") {
  Fixture f;
  f.Start(MakeView(5, {1, 1}, 2));
  f.Declare(0, Spec("w", 64 * 1024));
  f.Allocated(0);
  const uint32_t primary = f.member.FindTensor(Key("w"))->primary.value();
  const auto held = [&f](uint32_t owner, uint64_t round) {
    return f.Of<DeclareReply>(f.From<wire::Declared>(owner, wire::FrameType::kDeclared,
                                                     {{.key = Key("w"), .held = Round{round}}}));
  };
  // The other owner is gone before it agrees. Meanwhile the others have round 2 aborted.
  CHECK(held(primary, 1).empty());
  view::View next = MakeView(6, {1, 1}, 2);
  std::erase_if(next.aggregators, [primary](const view::ViewAggregator& aggregator) {
    return aggregator.incarnation != Incarnation{200 + primary};
  });
  f.OnView(next);
  CHECK(f.Entries<wire::Report>(f.AnswerAll()).empty());
  const auto replies = held(0, 2);
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].held == Round{2});
  // From then on it knows the round itself.
  held(0, 1);
  CHECK(f.member.FindTensor(Key("w"))->held.round == Round{2});
}

TEST_CASE("AgentCore: a view in which nobody holds a round begins with the first", "[pipeline]") {
  Fixture f;
  f.Start(MakeView(5, {1, 1}, 2));
  f.Declare(0, Spec("w", 64 * 1024));
  f.Allocated(0);
  const uint32_t primary = f.member.FindTensor(Key("w"))->primary.value();
  f.From<wire::Declared>(primary, wire::FrameType::kDeclared,
                         {{.key = Key("w"), .held = Round{1}}});
  f.OnView(MakeView(6, {1, 1}, 2));
  const auto replies = f.Of<DeclareReply>(f.AgreeTo(f.AnswerAll()));
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].held == Round{0});
}

TEST_CASE("AgentCore: a decision that contradicts what is known ends the job", "[pipeline]") {
  const auto failed_after = [](auto decide) {
    Fixture f;
    const auto entries = BeginRound(f);
    f.ResultOf(entries[0], 3);
    f.OnView(Survivors());
    f.AgreeTo(f.AnswerAll());
    decide(f);
    return f.member.views().phase() == Phase::kFailed && f.Of<ReportLost>(f.all).size() == 1;
  };
  using wire::Verdict;
  CHECK(failed_after([](Fixture& f) { f.Decide("w", Verdict::kRedo, 2); }));
  CHECK(failed_after([](Fixture& f) { f.Decide("w", Verdict::kRedo, 0); }));
  CHECK(failed_after([](Fixture& f) { f.Decide("w", Verdict::kAbort, 5); }));
  CHECK(failed_after([](Fixture& f) { f.Decide("w", Verdict::kFinish, 1, 1, {1, 1}); }));
  CHECK(failed_after([](Fixture& f) { f.Decide("w", Verdict::kFinish, 1, 0, {1, 1, 1, 1}); }));
  CHECK(failed_after([](Fixture& f) { f.Decide("w", Verdict::kFinish, 1, 1, {1, 1, 1, 9}); }));
  CHECK(failed_after([](Fixture& f) { f.Decide("w", Verdict::kFinish, 1, 1, {0, 0, 0, 0}); }));
  CHECK(failed_after([](Fixture& f) { f.Decide("w", Verdict::kFinish, 0, 1, {1, 1, 1, 1}); }));
  CHECK_FALSE(failed_after([](Fixture& f) { f.Decide("w", Verdict::kRedo, 1); }));
}

TEST_CASE("AgentCore: an agent survives any bytes that parse", "[pipeline]") {
  // Sends frames of every type, with keys, rounds and slices near the valid ones, in every phase.
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    Fixture f;
    BeginRound(f);
    for (int step = 0; step < 60 && f.member.views().phase() != Phase::kFailed; ++step) {
      if (random.OneIn(20)) f.OnView(Survivors(2 + step));
      if (random.OneIn(10)) f.AnswerAll();
      if (random.OneIn(15)) f.Broken(static_cast<uint32_t>(random.Below(2)));
      if (random.OneIn(3)) f.Push(0, 0, random.Below(4));
      const TensorKey key = random.OneIn(4) ? TensorKey{random.Below(3)} : Key("w");
      const Round round{random.Below(4)};
      const SliceIndex slice{static_cast<uint32_t>(random.Below(6))};
      const uint64_t epoch = random.Below(4) + (random.OneIn(2) ? step : 0);
      const uint32_t owner = static_cast<uint32_t>(random.Below(2));
      switch (random.Below(8)) {
        case 0:
          f.From<wire::Result>(owner, wire::FrameType::kResult,
                               {{.key = key,
                                 .round = round,
                                 .slice = slice,
                                 .rank_count = 3,
                                 .length_bytes = static_cast<uint32_t>(4 * random.Below(20'000)),
                                 .form = static_cast<wire::Form>(1 + random.Below(4)),
                                 .sum_epoch = Epoch{random.Below(3)}}},
                               epoch);
          break;
        case 1:
          f.From<wire::Decision>(owner, wire::FrameType::kDecision,
                                 {{.key = key,
                                   .round = round,
                                   .verdict = static_cast<wire::Verdict>(1 + random.Below(3)),
                                   .sum_epoch = Epoch{random.Below(3)},
                                   .sources = std::vector<uint16_t>(
                                       random.Below(6), static_cast<uint16_t>(random.Below(3)))}},
                                 epoch);
          break;
        case 2:
          f.From<wire::Declared>(owner, wire::FrameType::kDeclared, {{.key = key, .held = round}},
                                 epoch);
          break;
        case 3:
          f.From<wire::Waiting>(owner, wire::FrameType::kWaiting,
                                {{.key = key, .round = round, .missing_nodes = {1, 7}}}, epoch);
          break;
        case 4:
          f.From<wire::Refused>(owner, wire::FrameType::kRefused,
                                {{.reason = static_cast<wire::RefusedReason>(1 + random.Below(9)),
                                  .key = key,
                                  .round = round,
                                  .slice = slice}},
                                epoch);
          break;
        case 5:
          f.From(owner, static_cast<wire::FrameType>(1 + random.Below(15)), epoch, random.Next());
          break;
        case 6: f.From<wire::Hello>(owner, wire::FrameType::kHello, {{}}, epoch); break;
        case 7: f.From<wire::Welcome>(owner, wire::FrameType::kWelcome, {{}, {}}, epoch); break;
      }
      if (f.member.views().phase() != Phase::kFailed) f.Flush();
    }
  }
}

}  // namespace
}  // namespace talweg::pipeline
