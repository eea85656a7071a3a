// SPDX-License-Identifier: Apache-2.0
// Rounds of tensors in one view: pushes, reduction, credit, order, results, reconnection.
#include <algorithm>

#include <catch2/catch.hpp>

#include "libs/pipeline/agent_core_fixture.h"

namespace talweg::pipeline {
namespace {

using testing::Fixture;
using testing::Key;
using testing::MakeView;
using testing::Spec;

TEST_CASE("AgentCore: one rank's round goes from its own buffer to the owner and back",
          "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  CHECK(f.member.views().phase() == Phase::kActive);
  f.Open(Spec("w", 32 * 1024));  // 128 KiB: two slices.
  f.Push(0, 0, 1);
  const Effects sent = f.Flush();
  const auto writes = f.Of<WriteSlice>(sent);
  REQUIRE(writes.size() == 2);
  CHECK(writes[0].source.memory == Memory::kContribution);
  CHECK(writes[0].target == wire::RemoteRef{1, 1 << 20});
  CHECK(writes[1].target.address == (1 << 20) + 64 * kKiB);
  CHECK(f.Of<ReduceSlice>(sent).empty());
  const auto entries = f.Entries<wire::Contribute>(sent);
  REQUIRE(entries.size() == 2);
  CHECK(entries[0].form == wire::Form::kWritten);
  CHECK(entries[0].rank_count == 1);
  CHECK(entries[0].mode == wire::Mode::kSum);
  // Writes precede the frame that announces them.
  CHECK(std::holds_alternative<WriteSlice>(sent[0]));
  CHECK(std::holds_alternative<WriteSlice>(sent[1]));
  CHECK(std::holds_alternative<Send>(sent[2]));

  // A half of the result is not visible.
  CHECK(f.Of<CompleteRound>(f.ResultOf(entries[1], 2)).empty());
  const auto complete = f.Of<CompleteRound>(f.ResultOf(entries[0], 2));
  REQUIRE(complete.size() == 1);
  CHECK(complete[0].status == Status::kOk);
  CHECK(complete[0].round == Round{1});
  CHECK(complete[0].ranks_summed == 2);
  CHECK(complete[0].sum_epoch == Epoch{1});
  CHECK(f.Of<FailRank>(f.Push(0, 0, 2)).empty());
}

TEST_CASE("AgentCore: a slice's result is announced when it is there, before the round is complete",
          "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.Open(Spec("w", 32 * 1024));  // 128 KiB: two slices.
  f.Push(0, 0, 1);
  const auto entries = f.Entries<wire::Contribute>(f.Flush());
  REQUIRE(entries.size() == 2);
  const Effects second = f.ResultOf(entries[1], 2);
  REQUIRE(second.size() == 1);
  CHECK(std::get<SliceArrived>(second[0]).result == SliceBytes{.tensor = TensorIndex{0},
                                                               .round = Round{1},
                                                               .slice = SliceIndex{1},
                                                               .memory = Memory::kResult,
                                                               .offset_bytes = 64 * kKiB,
                                                               .length_bytes = 64 * kKiB});
  const Effects first = f.ResultOf(entries[0], 2);
  REQUIRE(first.size() == 2);
  CHECK(std::get<SliceArrived>(first[0]).result.offset_bytes == 0);
  CHECK(std::holds_alternative<CompleteRound>(first[1]));
}

TEST_CASE("AgentCore: a result that comes in a frame is announced after it has been copied",
          "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.Open(Spec("w", 1024));
  f.Push(0, 0, 1);
  const Effects result = f.Results(f.Flush(), 2);
  REQUIRE(result.size() == 3);
  CHECK(std::holds_alternative<CopyInline>(result[0]));
  CHECK(std::holds_alternative<SliceArrived>(result[1]));
  CHECK(std::holds_alternative<CompleteRound>(result[2]));
}

TEST_CASE("AgentCore: 256 KiB of writes are announced at once, and later writes after them",
          "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.Open(Spec("w", 96 * 1024));  // 384 KiB: six slices.
  f.Push(0, 0, 1);
  const Effects sent = f.Flush();
  std::string order;
  for (const Effect& effect : sent) order += std::holds_alternative<Send>(effect) ? 'F' : 'w';
  CHECK(order == "wwwwFwwF");
  CHECK(f.Entries<wire::Contribute>(sent).size() == 6);
}

TEST_CASE("AgentCore: a frame announces what the link carries in a millisecond", "[pipeline]") {
  // Slices have 64 KiB. Returns how many of them a frame announces at most, if `bytes_per_ms`
  // arrive in each millisecond.
  const auto announced = [](uint64_t bytes_per_ms) {
    Fixture f;
    f.Start(MakeView(1, {1}, 1));
    f.Open(Spec("w", 6 * 1024 * 1024));  // 24 MiB.
    f.Push(0, 0, 1);
    f.Flush();
    size_t count = 0;
    for (int ms = 0; ms < 100; ++ms) {
      f.now_ns += 1'000'000;
      f.From(0, wire::FrameType::kCredit, 1, bytes_per_ms);
      for (const Send& send : Fixture::Of<Send>(f.Flush())) {
        count = std::max(count, std::get<std::vector<wire::Contribute>>(send.entries).size());
      }
    }
    return count;
  };
  CHECK(announced(13'000) == 1);
  CHECK(announced(128 * kKiB) == 2);
  CHECK(announced(512 * kKiB) == 8);
  CHECK(announced(2 * kMiB) == 16);
}

TEST_CASE("AgentCore: several ranks are reduced when all have pushed, then sent", "[pipeline]") {
  Fixture f(1, 3);
  f.Start(MakeView(1, {1, 3}, 1));
  f.Open(Spec("w", 100));
  f.Push(2, 0, 1);
  f.Push(0, 0, 1);
  CHECK(f.Flush().empty());
  f.Push(1, 0, 1);
  const auto reduces = f.Of<ReduceSlice>(f.Flush());
  REQUIRE(reduces.size() == 1);
  CHECK(reduces[0].inputs == std::vector<LocalRank>{LocalRank{0}, LocalRank{1}, LocalRank{2}});
  CHECK(reduces[0].target.memory == Memory::kSendBuffer);
  CHECK_FALSE(reduces[0].is_final);
  CHECK(f.member.Wants(reduces[0].ticket));
  f.Reduced(reduces[0].ticket);
  const Effects sent = f.Flush();
  const auto entries = f.Entries<wire::Contribute>(sent);
  REQUIRE(entries.size() == 1);
  CHECK(entries[0].form == wire::Form::kInline);
  CHECK(entries[0].rank_count == 3);
  const Effects result = f.Results(sent);
  REQUIRE(f.Of<CopyInline>(result).size() == 1);
  CHECK(f.Of<CopyInline>(result)[0].target.memory == Memory::kResult);
  CHECK(f.Of<CompleteRound>(result).size() == 1);
  CHECK(f.Of<CompleteRound>(f.Reduced(reduces[0].ticket)).empty());  // A repetition has no effect.
}

TEST_CASE("AgentCore: a single rank's contribution is copied first where it cannot be sent from",
          "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.Declare(0, Spec("w", 32 * 1024), {.on_device = true});  // 128 KiB: two slices.
  f.AgreeTo(f.Allocated(0));
  f.Push(0, 0, 1);
  const Effects flushed = f.Flush();
  CHECK(f.Of<WriteSlice>(flushed).empty());
  const auto reduces = f.Of<ReduceSlice>(flushed);
  REQUIRE(reduces.size() == 2);
  CHECK(reduces[0].inputs == std::vector<LocalRank>{LocalRank{0}});
  CHECK(reduces[0].target.memory == Memory::kSendBuffer);
  for (const ReduceSlice& reduce : reduces) f.Reduced(reduce.ticket);
  const auto writes = f.Of<WriteSlice>(f.Flush());
  REQUIRE(writes.size() == 2);
  CHECK(writes[0].source.memory == Memory::kSendBuffer);
}

TEST_CASE("AgentCore: small slices of many tensors travel in one message", "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  for (int i = 0; i < 50; ++i) f.Open(Spec("t" + std::to_string(i), 10));
  for (uint32_t i = 0; i < 50; ++i) f.Push(0, i, 1);
  const Effects sent = f.Flush();
  CHECK(f.CountFrames(sent, wire::FrameType::kContribute) == 1);
  CHECK(f.Entries<wire::Contribute>(sent).size() == 50);
  CHECK(f.Of<Send>(sent)[0].sources.size() == 50);
}

TEST_CASE(
    "AgentCore: higher priority goes first, and credit bounds what is in flight and comes back",
    "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1), 128 * kKiB);
  f.Open(Spec("late layer", 64 * 1024));   // 4 slices.
  f.Open(Spec("first layer", 16 * 1024));  // 1 slice.
  f.Push(0, 0, 1, -10);
  const auto first = f.Entries<wire::Contribute>(f.Flush());
  CHECK(first.size() == 2);
  f.Push(0, 1, 1, 0);
  CHECK(f.Flush().empty());
  f.From(0, wire::FrameType::kCredit, 1, 64 * kKiB);
  const auto second = f.Entries<wire::Contribute>(f.Flush());
  REQUIRE(second.size() == 1);
  CHECK(second[0].key == Key("first layer"));  // It overtakes the other tensor between two slices.
  f.From(0, wire::FrameType::kCredit, 1, 1 << 30);
  CHECK(f.Entries<wire::Contribute>(f.Flush()).size() == 2);
  CHECK(f.member.queue().InFlightBytes(AggregatorIndex{0}) == 128 * kKiB);
}

TEST_CASE("AgentCore: a member says whether more of its contributions wait for the owner",
          "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1), 128 * kKiB);
  f.Open(Spec("w", 64 * 1024));  // 4 slices, with credit for two.
  f.Push(0, 0, 1);
  const auto last = [&] { return f.Of<Send>(f.Flush()).back(); };
  CHECK(last().more_wait);
  f.From(0, wire::FrameType::kCredit, 1, 64 * kKiB);
  CHECK(last().more_wait);
  f.From(0, wire::FrameType::kCredit, 1, 64 * kKiB);
  CHECK_FALSE(last().more_wait);
}

TEST_CASE("AgentCore: a broadcast's root sends bytes, and the others send none", "[pipeline]") {
  for (const uint32_t root : {0u, 2u}) {
    Fixture f(1, 2);  // Ranks 1 and 2.
    f.Start(MakeView(1, {1, 2}, 1));
    f.Open(Spec("b", 10, DType::kU8, Op::kCopy, root));
    f.Push(0, 0, 1);
    f.Push(1, 0, 1);
    Effects sent = f.Flush();
    if (root == 2) {
      const auto reduces = f.Of<ReduceSlice>(sent);
      REQUIRE(reduces.size() == 1);
      CHECK(reduces[0].inputs == std::vector<LocalRank>{LocalRank{1}});
      f.Reduced(reduces[0].ticket);
      sent = f.Flush();
    }
    const auto entries = f.Entries<wire::Contribute>(sent);
    REQUIRE(entries.size() == 1);
    CHECK(entries[0].mode == wire::Mode::kCopy);
    CHECK(entries[0].form == (root == 2 ? wire::Form::kInline : wire::Form::kEmpty));
    CHECK(entries[0].rank_count == (root == 2 ? 1 : 0));
    // The root's contribution does not come back: its node copies it.
    CHECK(entries[0].wants_result == (root != 2));
    const Effects results = f.Results(sent, 1);
    CHECK(f.Of<CopyOwn>(results).size() == (root == 2 ? 1 : 0));
    CHECK(f.Of<CompleteRound>(results).size() == 1);
  }
}

TEST_CASE("AgentCore: a member that is alone reduces locally, and that is the round",
          "[pipeline]") {
  Fixture f(0, 2);
  f.Start(MakeView(1, {2}, 0));
  CHECK(f.member.views().standalone());
  f.Open(Spec("w", 32 * 1024, DType::kF32, Op::kAverage));
  f.Push(0, 0, 1);
  f.Push(1, 0, 1);
  const auto reduces = f.Of<ReduceSlice>(f.Flush());
  REQUIRE(reduces.size() == 2);
  CHECK(reduces[0].is_final);
  CHECK(reduces[0].target.memory == Memory::kResult);
  CHECK(f.Of<CompleteRound>(f.Reduced(reduces[1].ticket)).empty());
  const auto complete = f.Of<CompleteRound>(f.Reduced(reduces[0].ticket));
  REQUIRE(complete.size() == 1);
  CHECK(complete[0].ranks_summed == 2);
}

TEST_CASE("AgentCore: the reducer gets no more work than it may hold", "[pipeline]") {
  Fixture f(0, 2);
  f.Start(MakeView(1, {2}, 0));
  f.Open(Spec("w", 4 * 1024 * 1024));  // 16 MiB in 256 slices.
  f.Push(0, 0, 1);
  f.Push(1, 0, 1);
  const auto reduces = f.Of<ReduceSlice>(f.Flush());
  CHECK(reduces.size() == 2 * kMiB / (64 * kKiB));
  CHECK(f.Flush().empty());
  f.Reduced(reduces[0].ticket);
  CHECK(f.Of<ReduceSlice>(f.Flush()).size() == 1);
}

TEST_CASE("AgentCore: a result that does not fit is never shown", "[pipeline]") {
  Fixture f;
  f.Start(MakeView(3, {1, 1}, 2));
  f.Open(Spec("w", 10));
  f.Push(0, 0, 1);
  const Effects sent = f.Flush();
  const uint32_t owner = f.member.FindTensor(Key("w"))->primary.value();
  std::vector<std::byte> bytes(40);
  const wire::Result good{.key = Key("w"),
                          .round = Round{1},
                          .slice = SliceIndex{0},
                          .rank_count = 2,
                          .length_bytes = 40,
                          .travel_bytes = 40,
                          .form = wire::Form::kInline,
                          .sum_epoch = Epoch{3},
                          .bytes = bytes};
  std::vector<wire::Result> bad(10, good);
  bad[0].key = TensorKey{1};
  bad[1].round = Round{2};
  bad[2].slice = SliceIndex{1};
  bad[3].sum_epoch = Epoch{2};
  bad[4].bytes = std::span(bytes).first(39);
  bad[5].form = wire::Form::kEmpty;
  bad[5].bytes = {};
  bad[6].round = Round{0};
  bad[7].length_bytes = 44;
  bad[7].travel_bytes = 44;
  bad[8].length_bytes = 36;
  bad[8].travel_bytes = 36;
  bad[8].bytes = std::span(bytes).first(36);
  bad[9].travel_bytes = 36;
  bad[9].bytes = std::span(bytes).first(36);
  for (const wire::Result& result : bad) {
    const Effects out = f.From<wire::Result>(owner, wire::FrameType::kResult, {result});
    CHECK(out.empty());
  }
  // A valid result, but from an aggregator that does not own the slice, of another epoch, or of
  // another job.
  CHECK(f.From<wire::Result>(1 - owner, wire::FrameType::kResult, {good}).empty());
  CHECK(f.From<wire::Result>(owner, wire::FrameType::kResult, {good}, 2).empty());
  wire::Frame foreign = f.Bare(wire::FrameType::kResult, 3);
  foreign.header.job = JobId{8};
  foreign.entries = std::vector<wire::Result>{good};
  CHECK(f.Deliver(f.OwnerAt(owner).connection, foreign).empty());
  CHECK(f.Deliver(ConnectionId{99}, foreign).empty());
  CHECK(f.member.counters().results_ignored == 11);
  CHECK(f.member.counters().frames_ignored == 3);

  CHECK(f.Of<CompleteRound>(f.From<wire::Result>(owner, wire::FrameType::kResult, {good})).size() ==
        1);
  // The second time it is ignored.
  CHECK(f.From<wire::Result>(owner, wire::FrameType::kResult, {good}).empty());
}

TEST_CASE("AgentCore: a slice's result counts once, and only after its contribution has left",
          "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1), 64 * kKiB);
  f.Open(Spec("w", 32 * 1024));  // Two slices, credit for one.
  f.Push(0, 0, 1);
  const auto first = f.Entries<wire::Contribute>(f.Flush());
  REQUIRE(first.size() == 1);
  wire::Contribute second = first[0];
  second.slice = SliceIndex{1};
  CHECK(f.ResultOf(second, 2).empty());  // The slice has not been sent.
  CHECK(f.Of<SliceArrived>(f.ResultOf(first[0], 2)).size() == 1);
  // The repetition is not taken for the second slice's result.
  CHECK(f.ResultOf(first[0], 2).empty());
  CHECK(f.member.counters().results_ignored == 2);
  CHECK(f.member.counters().results_taken == 1);
  f.From(0, wire::FrameType::kCredit, 1, 64 * kKiB);
  CHECK(f.Of<CompleteRound>(f.Results(f.Flush(), 2)).size() == 1);
}

TEST_CASE("AgentCore: slices that sum different numbers of ranks end the job", "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.Open(Spec("w", 32 * 1024));
  f.Push(0, 0, 1);
  const auto entries = f.Entries<wire::Contribute>(f.Flush());
  f.ResultOf(entries[0], 2);
  const Effects out = f.ResultOf(entries[1], 3);
  CHECK(f.Of<ReportLost>(out).size() == 1);
  CHECK(f.Of<FailJob>(out).size() == 1);
  CHECK(f.Of<CompleteRound>(out).empty());
}

TEST_CASE("AgentCore: a rank that breaks the rules is told so, and nothing else happens",
          "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.Open(Spec("w", 10));
  CHECK(f.Of<FailRank>(f.Push(0, 5, 1)).size() == 1);  // There is no such tensor.
  CHECK(f.Of<FailRank>(f.Push(0, 0, 2)).size() == 1);  // Round 1 is next.
  CHECK(f.Of<FailRank>(f.Push(0, 0, 0)).size() == 1);
  CHECK(f.Push(9, 0, 1).empty());  // There is no such rank.
  CHECK(f.Push(0, 0, 1).empty());
  const auto again = f.Of<FailRank>(f.Push(0, 0, 1));
  REQUIRE(again.size() == 1);
  CHECK(again[0].text.find("'w' again before round 1 was taken") != std::string::npos);
  CHECK(f.Entries<wire::Contribute>(f.Flush()).size() == 1);
}

TEST_CASE(
    "AgentCore: a broken connection is replaced, and contributions without a result go out again",
    "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1), 1 << 20);
  f.Open(Spec("w", 64 * 1024));  // 4 slices.
  f.Push(0, 0, 1);
  const auto entries = f.Entries<wire::Contribute>(f.Flush());
  REQUIRE(entries.size() == 4);
  f.ResultOf(entries[2]);
  const ConnectionId old = f.OwnerAt(0).connection;
  f.Broken(0);
  CHECK(f.OwnerAt(0).state == OwnerState::kBackoff);
  CHECK(f.Flush().empty());
  CHECK(f.Tick().empty());  // It is too early to connect.
  const int64_t before_ns = f.now_ns;
  const Effects again = f.AnswerAll(1 << 20);
  CHECK(f.now_ns > before_ns);
  CHECK(f.OwnerAt(0).connection != old);
  CHECK(f.CountFrames(again, wire::FrameType::kReport) == 1);
  CHECK(f.Entries<wire::Report>(again).empty());
  CHECK(f.Flush().empty());  // The slots have to come first.
  f.AgreeTo(again);
  const Effects sent = f.Flush();
  CHECK(f.Entries<wire::Contribute>(sent).size() == 3);
  CHECK(f.Of<CompleteRound>(f.Results(sent)).size() == 1);
  // Nothing from the old connection counts.
  wire::Frame late = f.Bare(wire::FrameType::kCredit, 1);
  CHECK(f.Deliver(old, late).empty());
}

TEST_CASE("AgentCore: attempts to connect come at growing intervals", "[pipeline]") {
  Fixture f;
  f.OnView(MakeView(1, {1, 1}, 1));
  int64_t last_gap_ns = 0;
  for (int i = 0; i < 10; ++i) {
    f.Broken(0);
    const int64_t gap_ns = f.OwnerAt(0).retry_at_ns - f.now_ns;
    CHECK(gap_ns >= last_gap_ns);
    CHECK(f.member.NextTickNs() <= f.OwnerAt(0).retry_at_ns);
    last_gap_ns = gap_ns;
    f.now_ns = f.OwnerAt(0).retry_at_ns;
    CHECK(f.Of<Connect>(f.Tick()).size() == 1);
  }
  CHECK(last_gap_ns == f.member.config().reconnect_max_ns);
}

TEST_CASE("AgentCore: local ranks that are late are named at growing intervals", "[pipeline]") {
  Fixture f(0, 3);
  f.Start(MakeView(1, {3}, 0));
  f.Open(Spec("w", 10));
  f.Push(1, 0, 1);
  std::vector<int64_t> at_ns;
  const int64_t start_ns = f.now_ns;
  while (f.now_ns < start_ns + 300'000'000'000) {
    f.now_ns = f.member.NextTickNs();
    const auto notices = f.Of<LogWaiting>(f.Tick());
    for (const LogWaiting& notice : notices) {
      CHECK(notice.what == LogWaiting::For::kLocalRanks);
      CHECK(notice.missing == std::vector<uint32_t>{0, 2});
      CHECK(notice.round == Round{1});
      at_ns.push_back(f.now_ns - start_ns);
    }
  }
  REQUIRE(at_ns.size() >= 7);
  CHECK(at_ns[0] == 1'000'000'000);
  CHECK(at_ns[1] == 2'000'000'000);
  CHECK(at_ns[2] == 4'000'000'000);
  CHECK(at_ns[6] == 64'000'000'000);
  CHECK(at_ns[7] == 124'000'000'000);
}

TEST_CASE("AgentCore: an owner's notice about who is late is passed on", "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.Open(Spec("w", 10));
  const auto notices = f.Of<LogWaiting>(f.From<wire::Waiting>(
      0, wire::FrameType::kWaiting,
      {{.key = Key("w"), .round = Round{1}, .waited_ns = 5, .missing_nodes = {1}}}));
  REQUIRE(notices.size() == 1);
  CHECK(notices[0].what == LogWaiting::For::kNodes);
  CHECK(notices[0].missing == std::vector<uint32_t>{1});
}

TEST_CASE("AgentCore: a refusal ends the job only when a round depends on it", "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.Open(Spec("w", 10));
  f.Push(0, 0, 1);
  f.Flush();
  const auto refuse = [&](wire::RefusedReason reason, uint64_t round) {
    return f.From<wire::Refused>(0, wire::FrameType::kRefused,
                                 {{.reason = reason, .key = Key("w"), .round = Round{round}}});
  };
  CHECK(f.Of<ReportLost>(refuse(wire::RefusedReason::kWrongEpoch, 1)).empty());
  CHECK(f.Of<ReportLost>(refuse(wire::RefusedReason::kWrongRound, 7)).empty());
  CHECK(f.Of<ReportLost>(refuse(wire::RefusedReason::kWrongLength, 1)).size() == 1);
  CHECK(f.member.views().phase() == Phase::kFailed);
  CHECK(f.member.counters().refused[static_cast<size_t>(wire::RefusedReason::kWrongLength)] == 1);
}

TEST_CASE("AgentCore: contributions to an aggregator on the same host do not wait for the link",
          "[pipeline]") {
  // 4 MiB. While the link's speed is unknown, the link would get little more than 1 MiB.
  const auto sent_bytes = [](const std::string& host_id) {
    Fixture f(0, 1, host_id);
    view::View view = MakeView(1, {1, 1}, 1);
    view.aggregators[0].host_id = "here";
    f.Start(view);
    f.Open(Spec("w", 1024 * 1024));
    f.Push(0, 0, 1);
    uint64_t bytes = 0;
    for (const WriteSlice& write : f.Of<WriteSlice>(f.Flush())) bytes += write.source.length_bytes;
    return bytes;
  };
  CHECK(sent_bytes("here") == 4 * kMiB);
  CHECK(sent_bytes("there") < 2 * kMiB);
  CHECK(sent_bytes("") < 2 * kMiB);
}

}  // namespace
}  // namespace talweg::pipeline
