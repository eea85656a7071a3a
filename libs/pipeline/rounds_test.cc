// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/rounds.h"

#include <span>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/pipeline/core_parts_fixture.h"

namespace talweg::pipeline {
namespace {

using Catch::Contains;
using testing::CoreParts;
using testing::Key;
using testing::MakeView;
using testing::Spec;

// 192 KiB: three slices of 64 KiB with one aggregator.
constexpr uint64_t kCount = 3 * 16 * 1024;
constexpr uint32_t kSliceBytes = 64 * kKiB;
constexpr AggregatorIndex kOwner{0};
constexpr Incarnation kOwnerIncarnation{200};

TensorSpec Encoded(TensorSpec spec) {
  spec.collective.encoding = Encoding::kTwice;
  return spec;
}

struct InRounds : CoreParts {
  explicit InRounds(const view::View& view = MakeView(1, {1, 1}, 1), uint32_t rank_count = 1)
      : CoreParts(view, rank_count) {
    MakeOwnersReady();
  }

  // All ranks here have pushed the open round, and all its slices have left.
  AgentTensor& Sent(const TensorSpec& spec) {
    AgentTensor& tensor = Open(spec);
    PushAll(tensor);
    MarkSent(tensor);
    return tensor;
  }
  static void MarkSent(AgentTensor& tensor) {
    for (uint32_t i = 0; i < tensor.slices.size(); ++i) {
      tensor.slice_states.Set(i, SliceState::kQueued);
      tensor.slice_states.Set(i, SliceState::kSent);
    }
  }
  // The owner's result of a slice, which it has written.
  wire::Result ResultOf(const AgentTensor& tensor, uint32_t slice) const {
    return {.key = tensor.key,
            .round = tensor.active_round(),
            .slice = SliceIndex{slice},
            .rank_count = 2,
            .length_bytes = tensor.slices[slice].length_bytes,
            .travel_bytes = tensor.slices[slice].length_bytes,
            .form = wire::Form::kWritten,
            .sum_epoch = views.present()->epoch};
  }
  void Take(const wire::Result& entry, uint32_t position = 0) {
    rounds.OnResult(kOwner, kOwnerIncarnation, entry, position, out);
    if (!views.has_failed()) tensors.CheckInvariants();
  }
  std::vector<schedule::QueuedSlice> TakeQueued() {
    std::vector<schedule::QueuedSlice> taken;
    while (const auto slice = queue.Take(0)) taken.push_back(*slice);
    return taken;
  }
};

TEST_CASE("Rounds: slices are queued as urgent as the push, each at its place and its price",
          "[pipeline]") {
  InRounds r;
  AgentTensor& tensor = r.Open(Spec("w", kCount));
  r.PushAll(tensor);
  tensor.priority = 5;
  tensor.order = 9;
  r.rounds.Queue(tensor, r.out);
  CHECK(r.queue.waiting_count() == 3);
  r.rounds.Queue(tensor, r.out);
  CHECK(r.queue.waiting_count() == 3);  // Each waits once.
  uint32_t next = 0;
  for (const schedule::QueuedSlice& slice : r.TakeQueued()) {
    CHECK(slice.slice == SliceIndex{next});
    CHECK(slice.tensor == tensor.key);
    CHECK(slice.round == Round{1});
    CHECK(slice.priority == 5);
    CHECK(slice.order == 9);
    CHECK(slice.position == next * schedule::QueuedSlice::kWhole / 3);
    CHECK(slice.cost_bytes == kSliceBytes);
    CHECK_FALSE(slice.is_bound);
    CHECK(tensor.slice_states[next] == SliceState::kQueued);
    ++next;
  }
  CHECK(next == 3);
}

TEST_CASE("Rounds: nothing is queued before it may leave", "[pipeline]") {
  InRounds r;
  AgentTensor& tensor = r.Open(Spec("w", kCount));
  SECTION("a rank has yet to push") {}
  SECTION("an owner has yet to agree") {
    r.PushAll(tensor);
    tensor.state = TensorState::kDeclaring;
  }
  SECTION("the primary owner has yet to decide") {
    r.PushAll(tensor);
    tensor.AwaitDecision({});
  }
  SECTION("a newer view is fenced") {
    r.PushAll(tensor);
    r.views.Enter(MakeView(2, {1, 1}, 1));
  }
  CHECK_FALSE(r.rounds.MaySend(tensor));
  r.rounds.Queue(tensor, r.out);
  CHECK(r.queue.waiting_count() == 0);
  CHECK(tensor.slice_states[0] == SliceState::kIdle);
}

TEST_CASE("Rounds: what stays on the node costs no credit beside what travels", "[pipeline]") {
  InRounds r(MakeView(1, {2, 1}, 1), 2);
  TensorSpec ours = Spec("w", 8);
  ours.ranks = {Rank{0}, Rank{1}};
  AgentTensor& tensor = r.Open(ours);
  r.PushAll(tensor);
  r.rounds.Queue(tensor, r.out);
  const auto queued = r.TakeQueued();
  REQUIRE(queued.size() == 1);
  CHECK(queued[0].cost_bytes == 0);
}

TEST_CASE("Rounds: an encoded slice is queued at the most that it may take, a Finish as it is",
          "[pipeline]") {
  InRounds r;
  AgentTensor& tensor = r.Open(Encoded(Spec("w", kCount)));
  tensor.held = {.round = Round{1},
                 .sum_epoch = Epoch{1},
                 .ranks_summed = 2,
                 .lengths = {tensor.spec.bytes()}};
  const bool is_finish = GENERATE(false, true);
  if (is_finish) {
    tensor.AwaitDecision({});
    tensor.Finish({.round = Round{1}, .sum_epoch = Epoch{1}, .sources = {0, 0, 0}});
  } else {
    r.PushAll(tensor);
  }
  r.rounds.Queue(tensor, r.out);
  const auto queued = r.TakeQueued();
  REQUIRE(queued.size() == 3);
  CHECK(queued[0].is_bound == !is_finish);
  CHECK(queued[0].cost_bytes == (is_finish ? 1 : 2) * kSliceBytes);
}

TEST_CASE("Rounds: a tensor that has lost a rank it needs is given up, and names its root",
          "[pipeline]") {
  InRounds r(MakeView(1, {1, 1, 1}, 1));
  AgentTensor& tensor = r.Open(Spec("w", 8, DType::kF32, Op::kCopy, 1));
  r.PushAll(tensor);
  tensor.is_dead = true;
  SECTION("its root") {
    view::View next = MakeView(2, {1, 1, 1}, 1);
    next.members.erase(next.members.begin() + 1);
    r.EnterAndFreeze(next);
    r.rounds.Queue(tensor, r.out);
    CHECK_THAT(tensor.failed_text, Contains("its root (local rank 0 of node 1) is gone"));
  }
  SECTION("another one") {
    r.rounds.Queue(tensor, r.out);
    CHECK_THAT(tensor.failed_text, Contains("one of its ranks is gone"));
  }
  CHECK(tensor.failed_status == Status::kAborted);
  CHECK(tensor.state == TensorState::kOpen);
  CHECK(r.queue.waiting_count() == 0);
  REQUIRE(r.Of<CompleteRound>().size() == 1);
  CHECK(r.Of<CompleteRound>()[0].status == Status::kAborted);
}

TEST_CASE("Rounds: a dead tensor's round ends though a local rank has yet to push it",
          "[pipeline]") {
  InRounds r(MakeView(1, {2, 1}, 1), 2);
  AgentTensor& tensor = r.Open(Spec("w", 8, DType::kF32, Op::kCopy, 1));
  tensor.is_dead = true;
  r.rounds.Queue(tensor, r.out);
  CHECK(tensor.failed_status == Status::kOk);  // Nobody waits for it.
  r.tensors.AddPush(tensor, LocalRank{1});
  r.rounds.Queue(tensor, r.out);
  CHECK(tensor.failed_status == Status::kAborted);
  REQUIRE(r.Of<CompleteRound>().size() == 1);
}

TEST_CASE("Rounds: a dead tensor's held round still leaves for others", "[pipeline]") {
  InRounds r;
  AgentTensor& tensor = r.Open(Spec("w", 8, DType::kF32, Op::kCopy, 1));
  tensor.held = {
      .round = Round{1}, .sum_epoch = Epoch{1}, .lengths = {tensor.spec.collective.part_bytes()}};
  tensor.is_dead = true;
  tensor.AwaitDecision({});
  tensor.Finish({.round = Round{1}, .sum_epoch = Epoch{1}, .sources = {0}});
  r.rounds.Queue(tensor, r.out);
  CHECK(tensor.failed_status == Status::kOk);
  CHECK(r.queue.waiting_count() == 1);
}

TEST_CASE("Rounds: a round whose results have all come is over, and the next one opens",
          "[pipeline]") {
  InRounds r;
  AgentTensor& tensor = r.Sent(Spec("w", kCount));
  r.Take(r.ResultOf(tensor, 2));
  r.Take(r.ResultOf(tensor, 0));
  CHECK(r.Of<SliceArrived>().size() == 2);
  CHECK(r.Of<CompleteRound>().empty());
  CHECK(tensor.partial.have == std::vector<bool>{true, false, true});
  r.Take(r.ResultOf(tensor, 1));
  const auto complete = r.Of<CompleteRound>();
  REQUIRE(complete.size() == 1);
  CHECK(complete[0].round == Round{1});
  CHECK(complete[0].status == Status::kOk);
  CHECK(complete[0].ranks_summed == 2);
  CHECK(complete[0].sum_epoch == Epoch{1});
  CHECK(complete[0].lengths == std::vector<uint64_t>{kCount * 4});
  CHECK(tensor.open_round() == Round{2});
  CHECK(tensor.held.has_result());
  CHECK(tensor.round_state() == RoundState::kFilling);
  CHECK(r.counters.rounds_completed == 1);
  CHECK(r.counters.result_bytes_written == kCount * 4);
}

TEST_CASE("Rounds: a result that this node does not expect is counted and not shown",
          "[pipeline]") {
  InRounds r;
  AgentTensor& tensor = r.Sent(Spec("w", kCount));
  wire::Result result = r.ResultOf(tensor, 0);
  Incarnation from = kOwnerIncarnation;
  SECTION("of an unknown tensor") { result.key = Key("unknown"); }
  SECTION("of another round") { result.round = Round{2}; }
  SECTION("of a slice that there is not") { result.slice = SliceIndex{3}; }
  SECTION("of sums of another epoch") { result.sum_epoch = Epoch{2}; }
  SECTION("longer than the slice") { result.length_bytes += 4; }
  SECTION("shorter than this node's contribution") {
    result.length_bytes -= 4;
    result.travel_bytes -= 4;
  }
  SECTION("whose bytes are not those of its data") { result.travel_bytes -= 4; }
  SECTION("without bytes") { result.form = wire::Form::kEmpty; }
  SECTION("from an aggregator that does not own it") { from = Incarnation{201}; }
  SECTION("of a slice that has not left") { tensor.slice_states.Set(0, SliceState::kIdle); }
  SECTION("of a tensor that awaits its decision") { tensor.AwaitDecision({}); }
  SECTION("of a tensor that has failed") {
    r.failures.FailTensor(tensor, Status::kMismatch, "why", r.out);
    r.out.clear();
  }
  r.rounds.OnResult(kOwner, from, result, 0, r.out);
  CHECK(r.counters.results_ignored == 1);
  CHECK(r.counters.results_taken == 0);
  CHECK(r.out.empty());
}

TEST_CASE("Rounds: the same result twice counts once", "[pipeline]") {
  InRounds r;
  AgentTensor& tensor = r.Sent(Spec("w", kCount));
  r.Take(r.ResultOf(tensor, 0));
  r.Take(r.ResultOf(tensor, 0));
  CHECK(r.counters.results_taken == 1);
  CHECK(r.counters.results_ignored == 1);
  CHECK(tensor.partial.have_count == 1);
}

TEST_CASE("Rounds: a result inside its frame is copied from its place there", "[pipeline]") {
  InRounds r;
  AgentTensor& tensor = r.Sent(Spec("w", 4));
  const std::vector<std::byte> bytes(16);
  wire::Result result = r.ResultOf(tensor, 0);
  result.form = wire::Form::kInline;
  result.bytes = bytes;
  r.Take(result, 6);
  const auto copies = r.Of<CopyInline>();
  REQUIRE(copies.size() == 1);
  CHECK(copies[0].entry == 6);
  CHECK(copies[0].target.memory == Memory::kResult);
  CHECK(copies[0].target.length_bytes == 16);
  CHECK(r.counters.result_bytes_written == 0);
  CHECK(r.counters.result_bytes_taken == 16);
}

TEST_CASE("Rounds: owners that have summed different ranks end the job", "[pipeline]") {
  InRounds r;
  AgentTensor& tensor = r.Sent(Spec("w", kCount));
  r.Take(r.ResultOf(tensor, 0));
  wire::Result other = r.ResultOf(tensor, 1);
  other.rank_count = 3;
  r.Take(other);
  CHECK_THAT(r.views.failed_text(),
             Contains("summed 3 ranks into slice 1 of tensor 'w', others 2"));
  CHECK(r.Of<ReportLost>().size() == 1);
}

TEST_CASE("Rounds: a root keeps what it gives, and copies it when all have it", "[pipeline]") {
  InRounds r;
  AgentTensor& tensor = r.Sent(Spec("w", 4, DType::kF32, Op::kCopy, 0));
  wire::Result acknowledged = r.ResultOf(tensor, 0);
  acknowledged.form = wire::Form::kEmpty;
  acknowledged.travel_bytes = 0;
  acknowledged.rank_count = 1;
  r.Take(acknowledged);
  REQUIRE(r.Of<CopyOwn>().size() == 1);
  CHECK(r.Of<CopyOwn>()[0].source.memory == Memory::kContribution);
  CHECK(r.Of<SliceArrived>().size() == 1);
  REQUIRE(r.Of<CompleteRound>().size() == 1);
  CHECK(r.Of<CompleteRound>()[0].ranks_summed == 1);
  CHECK(r.counters.results_taken == 0);
}

TEST_CASE("Rounds: ranks that disagree get the text of the first slice, and the next round works",
          "[pipeline]") {
  InRounds r;
  AgentTensor& tensor = r.Sent(Spec("w", kCount));
  const auto disagree = [&](uint32_t slice, const std::string& text) {
    wire::Result result = r.ResultOf(tensor, slice);
    result.form = wire::Form::kDisagreement;
    result.length_bytes = 0;
    result.travel_bytes = 0;
    result.bytes = std::as_bytes(std::span(text));
    r.Take(result);
  };
  disagree(1, "of slice 1");
  r.Take(r.ResultOf(tensor, 2));
  CHECK(r.Of<CompleteRound>().empty());
  disagree(0, "of slice 0");
  const auto complete = r.Of<CompleteRound>();
  REQUIRE(complete.size() == 1);
  CHECK(complete[0].status == Status::kMismatch);
  CHECK(complete[0].text == "of slice 0");
  CHECK(tensor.open_round() == Round{2});
  CHECK_FALSE(tensor.held.has_result());
  CHECK_FALSE(tensor.disagreement.has_value());
  CHECK(tensor.aborted_from == Round{0});  // No rank comes to this round late.
  CHECK(r.counters.rounds_aborted == 1);
}

TEST_CASE("Rounds: ranks of one node that disagree on a tensor of their own end its round",
          "[pipeline]") {
  InRounds r(MakeView(1, {2}, 0), 2);
  AgentTensor& tensor = r.Open(Spec("w", 8));
  r.PushAll(tensor);
  tensor.given.disagreement = "rank 0 gives this, rank 1 gives that";
  r.rounds.Queue(tensor, r.out);
  REQUIRE(r.Of<CompleteRound>().size() == 1);
  CHECK(r.Of<CompleteRound>()[0].status == Status::kMismatch);
  CHECK(r.Of<CompleteRound>()[0].text ==
        "round 1 of tensor 'w': rank 0 gives this, rank 1 gives that");
  CHECK(r.queue.waiting_count() == 0);
}

TEST_CASE("Rounds: an encoded result is shown when it is decoded", "[pipeline]") {
  InRounds r;
  AgentTensor& tensor = r.Sent(Encoded(Spec("w", kCount / 3)));
  wire::Result result = r.ResultOf(tensor, 0);
  result.travel_bytes = 100;
  r.Take(result);
  const auto decodes = r.Of<DecodeSlice>();
  REQUIRE(decodes.size() == 1);
  CHECK(decodes[0].encoding == Encoding::kTwice);
  CHECK(decodes[0].source.memory == Memory::kArrivals);
  CHECK(decodes[0].source.length_bytes == 100);
  CHECK(decodes[0].target.memory == Memory::kResult);
  CHECK(decodes[0].target.length_bytes == kSliceBytes);
  CHECK(r.Of<SliceArrived>().empty());
  SECTION("it is sound") {
    r.rounds.OnDecoded(decodes[0].ticket, true, r.out);
    CHECK(r.Of<SliceArrived>().size() == 1);
    CHECK(r.Of<CompleteRound>().size() == 1);
    const size_t count = r.out.size();
    r.rounds.OnDecoded(decodes[0].ticket, true, r.out);
    CHECK(r.out.size() == count);
  }
  SECTION("it is not") {
    r.rounds.OnDecoded(decodes[0].ticket, false, r.out);
    CHECK_THAT(r.views.failed_text(),
               Contains("aggregator 'aggregator-0' sent a result of slice 0 of tensor 'w' that is "
                        "no twice encoding of"));
  }
  SECTION("the tensor has failed meanwhile") {
    r.failures.FailTensor(tensor, Status::kMismatch, "why", r.out);
    const size_t count = r.out.size();
    r.rounds.OnDecoded(decodes[0].ticket, false, r.out);
    CHECK(r.out.size() == count);
  }
}

TEST_CASE("Rounds: an encoded tensor's Finish brings plain bytes", "[pipeline]") {
  InRounds r;
  AgentTensor& tensor = r.Open(Encoded(Spec("w", kCount / 3)));
  r.PushAll(tensor);
  tensor.AwaitDecision({});
  tensor.Finish({.round = Round{1}, .sum_epoch = Epoch{1}, .sources = {1}});
  InRounds::MarkSent(tensor);
  wire::Result result = r.ResultOf(tensor, 0);
  result.travel_bytes = 100;
  r.Take(result);
  CHECK(r.counters.results_ignored == 1);
  result.travel_bytes = kSliceBytes;
  r.Take(result);
  REQUIRE(r.Of<DecodeSlice>().size() == 1);
  CHECK(r.Of<DecodeSlice>()[0].encoding == Encoding::kPlain);
}

TEST_CASE("Rounds: a Finish keeps the epoch of its sums, and nobody disagrees in it",
          "[pipeline]") {
  InRounds r(MakeView(3, {1, 1}, 1));
  AgentTensor& tensor = r.Open(Spec("w", kCount / 3));
  r.PushAll(tensor);
  tensor.AwaitDecision({});
  tensor.Finish({.round = Round{1}, .sum_epoch = Epoch{2}, .sources = {1}});
  InRounds::MarkSent(tensor);
  wire::Result result = r.ResultOf(tensor, 0);
  r.Take(result);
  CHECK(r.counters.results_ignored == 1);  // A sum of the present epoch.
  result.sum_epoch = Epoch{2};
  wire::Result disagreement = result;
  disagreement.form = wire::Form::kDisagreement;
  r.Take(disagreement);
  CHECK(r.counters.results_ignored == 2);
  r.Take(result);
  REQUIRE(r.Of<CompleteRound>().size() == 1);
  CHECK(r.Of<CompleteRound>()[0].status == Status::kOk);
  CHECK(r.Of<CompleteRound>()[0].sum_epoch == Epoch{2});
}

TEST_CASE("Rounds: when the others have the held round, the open one goes on", "[pipeline]") {
  InRounds r;
  AgentTensor& tensor = r.Open(Spec("w", kCount / 3));
  tensor.held = {.round = Round{1},
                 .sum_epoch = Epoch{1},
                 .ranks_summed = 2,
                 .lengths = {tensor.spec.bytes()}};
  r.PushAll(tensor);
  tensor.AwaitDecision({});
  tensor.Finish({.round = Round{1}, .sum_epoch = Epoch{1}, .sources = {0}});
  InRounds::MarkSent(tensor);
  wire::Result acknowledged = r.ResultOf(tensor, 0);
  acknowledged.form = wire::Form::kEmpty;
  acknowledged.travel_bytes = 0;
  r.Take(acknowledged);
  CHECK(r.Of<CompleteRound>().empty());  // The ranks here have had it.
  CHECK(r.Of<SliceArrived>().empty());
  CHECK(tensor.round_state() == RoundState::kTravelling);
  CHECK(tensor.active_round() == Round{2});
  CHECK(tensor.held.round == Round{1});
  const auto queued = r.TakeQueued();
  REQUIRE(queued.size() == 1);
  CHECK(queued[0].round == Round{2});
}

TEST_CASE("Rounds: the first of several aborted rounds is remembered until one has a result",
          "[pipeline]") {
  InRounds r;
  AgentTensor& tensor = r.Open(Spec("w", kCount / 3));
  r.rounds.Abort(tensor, Status::kAborted, "why", r.out);
  r.rounds.Abort(tensor, Status::kAborted, "why", r.out);
  CHECK(tensor.open_round() == Round{3});
  CHECK(tensor.aborted_from == Round{1});
  CHECK(tensor.needs_all);
  const auto complete = r.Of<CompleteRound>();
  REQUIRE(complete.size() == 2);
  CHECK(complete[1].round == Round{2});
  CHECK(complete[1].status == Status::kAborted);
  SECTION("a round has a result") {
    r.PushAll(tensor);
    InRounds::MarkSent(tensor);
    r.Take(r.ResultOf(tensor, 0));
    CHECK_FALSE(tensor.needs_all);
    CHECK(tensor.aborted_from == Round{0});
  }
  SECTION("ranks disagree on one that all have pushed") {
    r.PushAll(tensor);
    r.rounds.Abort(tensor, Status::kMismatch, "why", r.out);
    CHECK(tensor.aborted_from == Round{0});
  }
  SECTION("ranks disagree on one that goes on without a late rank") {
    tensor.spec.collective.patience_ms = 20;
    r.tensors.LeaveOutMissing(tensor);
    r.rounds.Abort(tensor, Status::kMismatch, "why", r.out);
    CHECK(tensor.aborted_from == Round{1});
  }
}

}  // namespace
}  // namespace talweg::pipeline
