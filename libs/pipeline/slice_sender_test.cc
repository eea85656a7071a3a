// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/slice_sender.h"

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/pipeline/core_parts_fixture.h"

namespace talweg::pipeline {
namespace {

using Catch::Contains;
using testing::CoreParts;
using testing::MakeView;
using testing::Spec;

// 64 KiB: one slice.
constexpr uint64_t kCount = 16 * 1024;
constexpr uint32_t kSliceBytes = 64 * kKiB;
constexpr AggregatorIndex kOwner{0};

struct Sending : CoreParts {
  explicit Sending(const view::View& view = MakeView(1, {1, 1}, 1), uint32_t rank_count = 1)
      : CoreParts(view, rank_count) {
    config.host_id = "here";
    MakeOwnersReady();
  }

  AgentTensor& OpenPushed(const TensorSpec& spec) {
    AgentTensor& tensor = Open(spec);
    for (auto& [index, agreement] : tensor.owners) agreement.slot = {index.value() + 1, 1 << 20};
    PushAll(tensor);
    rounds.Queue(tensor, out);
    return tensor;
  }
  // Returns the effects of one Flush.
  Effects Flush() {
    out.clear();
    sender.Flush(0, out);
    tensors.CheckInvariants();
    return out;
  }
  // The reducer gives the slice back.
  Effects Reduced(uint64_t ticket, std::optional<uint32_t> travel_bytes = std::nullopt) {
    out.clear();
    sender.OnReduced(ticket, travel_bytes, 0, out);
    reductions.CheckInvariants();
    return out;
  }
  std::vector<wire::Contribute> Entries() const {
    return testing::Fixture::Entries<wire::Contribute>(out);
  }
  uint64_t InFlight() const { return queue.InFlightBytes(kOwner); }

  SliceSender sender{&config,     &views,  &tensors,  &links,   &queue,
                     &reductions, &rounds, &failures, &counters};
};

TEST_CASE("SliceSender: a slice is written to its slot, and then announced", "[pipeline]") {
  Sending s;
  AgentTensor& tensor = s.OpenPushed(Spec("w", kCount));
  tensor.given.signature = 77;
  tensor.priority = 3;
  s.Flush();
  REQUIRE(s.out.size() == 2);
  const auto* const write = std::get_if<WriteSlice>(&s.out[0]);
  REQUIRE(write != nullptr);
  CHECK(write->connection == s.ConnectionTo(0));
  CHECK(write->source.memory == Memory::kContribution);
  CHECK(write->source.length_bytes == kSliceBytes);
  CHECK(write->target == wire::RemoteRef{1, 1 << 20});
  const auto* const send = std::get_if<Send>(&s.out[1]);
  REQUIRE(send != nullptr);
  CHECK(send->type == wire::FrameType::kContribute);
  CHECK(send->epoch == Epoch{1});
  CHECK_FALSE(send->more_wait);
  REQUIRE(s.Entries().size() == 1);
  const wire::Contribute entry = s.Entries()[0];
  CHECK(entry.key == tensor.key);
  CHECK(entry.round == Round{1});
  CHECK(entry.mode == wire::Mode::kSum);
  CHECK(entry.form == wire::Form::kWritten);
  CHECK(entry.rank_count == 1);
  CHECK(entry.length_bytes == kSliceBytes);
  CHECK(entry.travel_bytes == kSliceBytes);
  CHECK(entry.wants_result);
  CHECK(entry.sum_epoch == Epoch{0});
  CHECK(entry.signature == 77);
  CHECK(entry.priority == 3);
  CHECK(tensor.slice_states[0] == SliceState::kSent);
  CHECK(s.counters.contributions_sent == 1);
  CHECK(s.counters.contribution_bytes_sent == kSliceBytes);
  CHECK(s.Flush().empty());  // It leaves once.
}

TEST_CASE("SliceSender: small slices leave together, inside one frame for each owner",
          "[pipeline]") {
  Sending s(MakeView(1, {1, 1}, 2));
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) s.OpenPushed(Spec(name, 4));
  s.Flush();
  CHECK(s.Of<WriteSlice>().empty());
  CHECK(s.Entries().size() == 6);
  const auto sends = s.Of<Send>();
  REQUIRE(sends.size() == 2);
  CHECK(sends[0].connection != sends[1].connection);
  for (const Send& send : sends) {
    const auto& entries = std::get<std::vector<wire::Contribute>>(send.entries);
    REQUIRE(send.sources.size() == entries.size());
    for (size_t i = 0; i < entries.size(); ++i) {
      const AgentTensor& tensor = s.tensors.At(send.sources[i].tensor);
      CHECK(tensor.key == entries[i].key);
      CHECK(send.connection == s.ConnectionTo(tensor.slices[0].owner.value()));
      CHECK(entries[i].form == wire::Form::kInline);
    }
  }
}

TEST_CASE("SliceSender: large slices are announced before all of them are written", "[pipeline]") {
  view::View view = MakeView(1, {1, 1}, 1);
  size_t frames = 0;
  SECTION("over a link whose speed is not known: 256 KiB at a time") { frames = 2; }
  SECTION("to an owner on this host: a MiB at a time") {
    view.aggregators[0].host_id = "here";
    frames = 1;
  }
  Sending s(view);
  s.OpenPushed(Spec("w", 8 * kCount));
  s.Flush();
  CHECK(s.Of<WriteSlice>().size() == 8);
  CHECK(s.Entries().size() == 8);
  CHECK(s.Of<Send>().size() == frames);
}

TEST_CASE("SliceSender: what has no credit waits, and the frame says so", "[pipeline]") {
  Sending s;
  s.queue.Close(kOwner);
  s.queue.Open(kOwner, 2 * kSliceBytes);
  AgentTensor& tensor = s.OpenPushed(Spec("w", 3 * kCount));
  s.Flush();
  CHECK(s.Entries().size() == 2);
  REQUIRE(s.Of<Send>().size() == 1);
  CHECK(s.Of<Send>()[0].more_wait);
  CHECK(tensor.slice_states[2] == SliceState::kQueued);
  s.queue.ReturnCredit(kOwner, kSliceBytes, 0);
  s.Flush();
  REQUIRE(s.Entries().size() == 1);
  CHECK(s.Entries()[0].slice == SliceIndex{2});
  CHECK_FALSE(s.Of<Send>()[0].more_wait);
}

TEST_CASE("SliceSender: ranks of one node are reduced before the slice leaves", "[pipeline]") {
  Sending s(MakeView(1, {2, 1}, 1), 2);
  AgentTensor& tensor = s.OpenPushed(Spec("w", kCount));
  s.Flush();
  CHECK(s.Of<Send>().empty());
  const auto reductions = s.Of<ReduceSlice>();
  REQUIRE(reductions.size() == 1);
  CHECK(reductions[0].inputs == std::vector<LocalRank>{LocalRank{0}, LocalRank{1}});
  CHECK(reductions[0].rank_count == 2);
  CHECK(reductions[0].target.memory == Memory::kSendBuffer);
  CHECK_FALSE(reductions[0].is_final);
  CHECK(tensor.slice_states[0] == SliceState::kReducing);
  CHECK(s.InFlight() == kSliceBytes);
  CHECK(s.Reduced(reductions[0].ticket + 1).empty());  // A ticket that nobody has drawn.
  CHECK(s.Reduced(reductions[0].ticket).empty());
  CHECK(tensor.slice_states[0] == SliceState::kReduced);
  s.Flush();
  REQUIRE(s.Of<WriteSlice>().size() == 1);
  CHECK(s.Of<WriteSlice>()[0].source.memory == Memory::kSendBuffer);
  REQUIRE(s.Entries().size() == 1);
  CHECK(s.Entries()[0].rank_count == 2);
}

TEST_CASE("SliceSender: the reducer has only so much in hand", "[pipeline]") {
  Sending s(MakeView(1, {2, 1}, 1), 2);
  s.config.reduce_bytes_max = 2 * kSliceBytes;
  s.OpenPushed(Spec("w", 3 * kCount));
  s.Flush();
  const auto first = s.Of<ReduceSlice>();
  REQUIRE(first.size() == 2);
  CHECK(s.Flush().empty());
  s.Reduced(first[0].ticket);
  s.Flush();
  CHECK(s.Of<ReduceSlice>().size() == 1);
}

TEST_CASE("SliceSender: what concerns this node alone is reduced to the result, and never sent",
          "[pipeline]") {
  Sending s(MakeView(1, {2, 1}, 1), 2);
  TensorSpec ours = Spec("w", kCount);
  ours.ranks = {Rank{0}, Rank{1}};
  AgentTensor& tensor = s.OpenPushed(ours);
  s.Flush();
  const auto reductions = s.Of<ReduceSlice>();
  REQUIRE(reductions.size() == 1);
  CHECK(reductions[0].is_final);
  CHECK(reductions[0].target.memory == Memory::kResult);
  CHECK(s.InFlight() == 0);
  s.Reduced(reductions[0].ticket);
  REQUIRE(s.Of<CompleteRound>().size() == 1);
  CHECK(s.Of<CompleteRound>()[0].ranks_summed == 2);
  CHECK(tensor.held.round == Round{1});
  CHECK(s.Flush().empty());
}

TEST_CASE("SliceSender: an encoded slice is charged with what it takes when it leaves",
          "[pipeline]") {
  Sending s;
  TensorSpec spec = Spec("w", kCount);
  spec.collective.encoding = Encoding::kTwice;
  AgentTensor& tensor = s.OpenPushed(spec);
  s.Flush();
  const auto reductions = s.Of<ReduceSlice>();
  REQUIRE(reductions.size() == 1);
  CHECK(s.InFlight() == 2 * kSliceBytes);
  SECTION("it leaves") {
    s.Reduced(reductions[0].ticket, 9000);
    s.Flush();
    REQUIRE(s.Entries().size() == 1);
    CHECK(s.Entries()[0].length_bytes == kSliceBytes);
    CHECK(s.Entries()[0].travel_bytes == 9000);
    CHECK(s.Of<WriteSlice>()[0].source.length_bytes == 9000);
    CHECK(s.InFlight() == 9000);
  }
  SECTION("its tensor has failed when it is reduced") {
    s.failures.FailTensor(tensor, Status::kMismatch, "why", s.out);
    s.Reduced(reductions[0].ticket, 9000);
    CHECK(s.Flush().empty());
    CHECK(s.InFlight() == 0);
  }
  SECTION("its tensor fails after that") {
    s.Reduced(reductions[0].ticket, 9000);
    s.failures.FailTensor(tensor, Status::kMismatch, "why", s.out);
    CHECK(s.Flush().empty());
    CHECK(s.InFlight() == 0);
  }
}

TEST_CASE("SliceSender: the mode says whether the owner combines or copies", "[pipeline]") {
  Sending s;
  const auto sent = [&] {
    s.Flush();
    REQUIRE(s.Entries().size() == 1);
    return s.Entries()[0];
  };
  s.OpenPushed(Spec("root", 4, DType::kF32, Op::kCopy, 0));
  const wire::Contribute root = sent();
  CHECK(root.mode == wire::Mode::kCopy);
  CHECK(root.sum_epoch == Epoch{0});
  CHECK(root.form == wire::Form::kInline);
  CHECK_FALSE(root.wants_result);
  s.OpenPushed(Spec("other", 4, DType::kF32, Op::kCopy, 1));
  const wire::Contribute other = sent();
  CHECK(other.mode == wire::Mode::kCopy);
  CHECK(other.form == wire::Form::kEmpty);
  CHECK(other.length_bytes == 0);
  CHECK(other.rank_count == 0);
  CHECK(other.wants_result);
}

TEST_CASE("SliceSender: in a Finish the source sends its result, with the epoch of its sums",
          "[pipeline]") {
  Sending s(MakeView(3, {2, 1}, 1), 2);
  AgentTensor& tensor = s.Open(Spec("w", 2 * kCount));
  tensor.held = {.round = Round{4},
                 .sum_epoch = Epoch{2},
                 .ranks_summed = 5,
                 .lengths = {tensor.spec.bytes()}};
  tensor.given.signature = 77;
  tensor.AwaitDecision({});
  tensor.Finish({.round = Round{4}, .sum_epoch = Epoch{2}, .sources = {0, 1}});
  s.rounds.Queue(tensor, s.out);
  s.Flush();
  CHECK(s.Of<ReduceSlice>().empty());
  const auto entries = s.Entries();
  REQUIRE(entries.size() == 2);
  for (const wire::Contribute& entry : entries) {
    CHECK(entry.mode == wire::Mode::kCopy);
    CHECK(entry.round == Round{4});
    CHECK(entry.sum_epoch == Epoch{2});
    CHECK(entry.signature == 0);
    CHECK_FALSE(entry.wants_result);
  }
  CHECK(entries[0].form == wire::Form::kWritten);
  CHECK(entries[0].rank_count == 5);
  CHECK(entries[1].form == wire::Form::kEmpty);
  REQUIRE(s.Of<WriteSlice>().size() == 1);
  CHECK(s.Of<WriteSlice>()[0].source.memory == Memory::kResult);
}

TEST_CASE("SliceSender: ranks that disagree send a text instead of bytes", "[pipeline]") {
  Sending s;
  AgentTensor& tensor = s.Open(Spec("w", kCount));
  s.PushAll(tensor);
  tensor.given.disagreement = "rank 0 gives this, rank 1 gives that";
  s.rounds.Queue(tensor, s.out);
  s.Flush();
  REQUIRE(s.Entries().size() == 1);
  CHECK(s.Entries()[0].form == wire::Form::kDisagreement);
  CHECK(s.Entries()[0].length_bytes == 0);
  CHECK(s.Of<Send>()[0].texts == std::vector<std::string>{tensor.given.disagreement});
  CHECK(s.Of<WriteSlice>().empty());
  CHECK(s.InFlight() == 0);
}

TEST_CASE("SliceSender: a slice of a tensor that an owner must agree to again waits for that",
          "[pipeline]") {
  Sending s;
  AgentTensor& tensor = s.OpenPushed(Spec("w", kCount));
  tensor.state = TensorState::kDeclaring;
  CHECK(s.Flush().empty());
  CHECK(tensor.slice_states[0] == SliceState::kIdle);
  CHECK(s.InFlight() == 0);
  tensor.state = TensorState::kOpen;
  s.rounds.Queue(tensor, s.out);
  s.Flush();
  CHECK(s.Entries().size() == 1);
}

TEST_CASE("SliceSender: a queued slice whose round is over neither leaves nor costs anything",
          "[pipeline]") {
  Sending s;
  AgentTensor& tensor = s.OpenPushed(Spec("w", kCount));
  s.rounds.Abort(tensor, Status::kAborted, "why", s.out);
  s.PushAll(tensor);
  tensor.given.lengths = {4};
  s.rounds.Queue(tensor, s.out);
  s.Flush();
  REQUIRE(s.Entries().size() == 1);
  CHECK(s.Entries()[0].round == Round{2});
  CHECK(s.InFlight() == 4);
}

TEST_CASE("SliceSender: an owner whose connection broke gets its slices again, and no other",
          "[pipeline]") {
  Sending s(MakeView(1, {2, 1}, 2), 2);
  // Four slices, two for each owner.
  AgentTensor& tensor = s.OpenPushed(Spec("w", 3 * kCount));
  REQUIRE(tensor.slices.size() == 4);
  s.Flush();
  const auto reductions = s.Of<ReduceSlice>();
  REQUIRE(reductions.size() == 4);
  s.Reduced(reductions[0].ticket);
  const AggregatorIndex lost = tensor.slices[reductions[0].target.slice.value()].owner;
  s.sender.ForgetOwner(lost);
  for (const ReduceSlice& each : reductions) {
    const uint32_t slice = each.target.slice.value();
    const bool is_lost = tensor.slices[slice].owner == lost;
    CHECK(s.reductions.IsWanted(each.ticket) == !is_lost);
    CHECK(tensor.slice_states[slice] == (is_lost ? SliceState::kIdle : SliceState::kReducing));
  }
  CHECK(tensor.state == TensorState::kDeclaring);
  s.Flush();
  CHECK(s.Entries().empty());  // What was reduced for it does not leave.
}

TEST_CASE("SliceSender: a refusal ends the job unless something else deals with it", "[pipeline]") {
  Sending s;
  AgentTensor& tensor = s.OpenPushed(Spec("w", kCount));
  s.Flush();
  wire::Refused refused = {.reason = wire::RefusedReason::kWrongLength,
                           .key = tensor.key,
                           .round = Round{1},
                           .slice = SliceIndex{0},
                           .text = "why"};
  const auto refuse = [&] {
    s.out.clear();
    s.sender.OnRefused(kOwner, refused, s.out);
    CHECK(s.counters.refused[static_cast<size_t>(refused.reason)] == 1);
  };
  bool ends_the_job = false;
  SECTION("of a slice that waits for its result") {
    ends_the_job = true;
    refuse();
  }
  SECTION("in an epoch that is over there") {
    refused.reason = wire::RefusedReason::kWrongEpoch;
    refuse();
  }
  SECTION("of a member that is none there") {
    refused.reason = wire::RefusedReason::kNotAMember;
    refuse();
  }
  SECTION("of a tensor that has failed there") {
    refused.reason = wire::RefusedReason::kPoisoned;
    refuse();
  }
  SECTION("while a newer view is fenced") {
    s.views.Enter(MakeView(2, {1, 1}, 1));
    refuse();
  }
  SECTION("of another round") {
    refused.round = Round{2};
    refuse();
  }
  SECTION("of a slice that has its result") {
    tensor.slice_states.Set(0, SliceState::kDone);
    refuse();
  }
  SECTION("of a slice that there is not") {
    refused.slice = SliceIndex{1};
    refuse();
  }
  CHECK(s.views.has_failed() == ends_the_job);
  if (ends_the_job) {
    CHECK_THAT(
        s.views.failed_text(),
        Contains("aggregator 'aggregator-0' refused a contribution (") && Contains("): why"));
  } else {
    REQUIRE(s.Of<Log>().size() == 1);
    CHECK(s.Of<Log>()[0].is_warning);
  }
}

}  // namespace
}  // namespace talweg::pipeline
