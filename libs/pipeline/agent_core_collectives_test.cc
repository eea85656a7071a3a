// SPDX-License-Identifier: Apache-2.0
// Collectives other than the reduction of all ranks: which member sends what, what the node does
// itself, and how a round ends whose ranks disagree.
#include <catch2/catch.hpp>

#include "libs/base/signature_text.h"
#include "libs/pipeline/agent_core_fixture.h"

namespace talweg::pipeline {
namespace {

using testing::Fixture;
using testing::Key;
using testing::MakeView;

TensorSpec SpecOf(std::string_view collective, uint64_t count, std::vector<uint32_t> ranks,
                  uint32_t root = 0) {
  TensorSpec spec{.name = "t", .root_rank = root};
  for (const CollectiveRow& row : kCollectives) {
    if (row.name != collective) continue;
    spec.collective = {DType::kF32, row.gives == Share::kWhole ? Op::kSum : Op::kCopy, row.gives,
                       row.gets, count};
  }
  for (const uint32_t rank : ranks) spec.ranks.push_back(Rank{rank});
  return spec;
}

Effects PushOf(Fixture& f, uint32_t rank, uint64_t round, std::vector<uint32_t> lengths = {},
               RoundSignature signature = 0) {
  return f.Do([&](Effects& out) {
    f.member.OnPush({.rank = LocalRank{rank},
                     .tensor = TensorIndex{0},
                     .round = Round{round},
                     .signature = signature,
                     .lengths = std::move(lengths)},
                    f.now_ns, out);
  });
}

// Delivers the result of a contribution, with the given length.
Effects ResultOf(Fixture& f, const wire::Contribute& entry, uint32_t length_bytes) {
  std::vector<std::byte> payload(length_bytes, std::byte{7});
  wire::Result result{.key = entry.key,
                      .round = entry.round,
                      .slice = entry.slice,
                      .rank_count = 1,
                      .length_bytes = length_bytes,
                      .travel_bytes = length_bytes,
                      .form = entry.wants_result ? wire::Form::kInline : wire::Form::kEmpty,
                      .sum_epoch = f.member.views().present()->epoch};
  if (entry.wants_result) result.bytes = payload;
  return f.From<wire::Result>(0, wire::FrameType::kResult, {result});
}

Effects DisagreementOf(Fixture& f, const wire::Contribute& entry, const std::string& text) {
  const wire::Result result{.key = entry.key,
                            .round = entry.round,
                            .slice = entry.slice,
                            .form = wire::Form::kDisagreement,
                            .sum_epoch = f.member.views().present()->epoch,
                            .bytes = std::as_bytes(std::span(text))};
  return f.From<wire::Result>(0, wire::FrameType::kResult, {result});
}

TEST_CASE("AgentCore: all_gather copies the own part and takes the others' parts at their lengths",
          "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.Open(SpecOf("all_gather", 16, {0, 1}));
  PushOf(f, 0, 1, {32, 0});
  const auto sent = Fixture::Entries<wire::Contribute>(f.Flush());
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].form == wire::Form::kInline);
  CHECK(sent[0].length_bytes == 32);
  CHECK_FALSE(sent[0].wants_result);
  CHECK(sent[1].form == wire::Form::kEmpty);
  CHECK(sent[1].wants_result);

  const auto copies = Fixture::Of<CopyOwn>(ResultOf(f, sent[0], 32));
  REQUIRE(copies.size() == 1);
  CHECK(copies[0].source.memory == Memory::kContribution);
  CHECK(copies[0].source.offset_bytes == 0);
  CHECK(copies[0].source.length_bytes == 32);

  const Effects last = ResultOf(f, sent[1], 16);
  const auto inlined = Fixture::Of<CopyInline>(last);
  REQUIRE(inlined.size() == 1);
  CHECK(inlined[0].target.offset_bytes == 64);
  CHECK(inlined[0].target.length_bytes == 16);
  const auto complete = Fixture::Of<CompleteRound>(last);
  REQUIRE(complete.size() == 1);
  CHECK(complete[0].lengths == std::vector<uint64_t>{32, 16});
}

TEST_CASE("AgentCore: a result of another length than was given is ignored", "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.Open(SpecOf("all_gather", 16, {0, 1}));
  PushOf(f, 0, 1, {32, 0});
  const auto sent = Fixture::Entries<wire::Contribute>(f.Flush());
  REQUIRE(sent.size() == 2);
  ResultOf(f, sent[0], 28);
  ResultOf(f, sent[1], 68);  // This is more than the slice has.
  CHECK(f.member.counters().results_ignored == 2);
}

TEST_CASE("AgentCore: reduce_scatter asks only for its own part", "[pipeline]") {
  Fixture f(1);
  f.Start(MakeView(1, {1, 1}, 1));
  f.Open(SpecOf("reduce_scatter", 16, {0, 1}));
  PushOf(f, 0, 1);
  const auto sent = Fixture::Entries<wire::Contribute>(f.Flush());
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].form == wire::Form::kInline);
  CHECK_FALSE(sent[0].wants_result);
  CHECK(sent[1].form == wire::Form::kInline);
  CHECK(sent[1].wants_result);
  CHECK(Fixture::Of<SliceArrived>(ResultOf(f, sent[0], 64)).empty());
  const Effects last = ResultOf(f, sent[1], 64);
  REQUIRE(Fixture::Of<SliceArrived>(last).size() == 1);
  REQUIRE(Fixture::Of<CompleteRound>(last).size() == 1);
  CHECK(Fixture::Of<CompleteRound>(last)[0].lengths[1] == 64);
}

TEST_CASE("AgentCore: all_to_all sends no part of others, and does its private part itself",
          "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1, 1}, 1));
  f.Open(SpecOf("all_to_all", 16, {0, 1, 2}));
  PushOf(f, 0, 1);
  const Effects out = f.Flush();
  std::vector<uint32_t> slices;
  for (const auto& entry : Fixture::Entries<wire::Contribute>(out)) {
    slices.push_back(entry.slice.value());
  }
  // These go from 0 to 1 and 2, and from 1 and 2 to 0.
  CHECK(slices == std::vector<uint32_t>{1, 2, 3, 6});
  const auto reduces = Fixture::Of<ReduceSlice>(out);
  REQUIRE(reduces.size() == 1);
  CHECK(reduces[0].target.slice == SliceIndex{0});
  CHECK(reduces[0].target.memory == Memory::kResult);
  f.Reduced(reduces[0].ticket);
  Effects last;
  for (const auto& entry : Fixture::Entries<wire::Contribute>(out)) last = ResultOf(f, entry, 64);
  CHECK(Fixture::Of<CompleteRound>(last).size() == 1);
}

TEST_CASE("AgentCore: a group on one node is reduced there", "[pipeline]") {
  Fixture f(0, 2);
  f.Start(MakeView(1, {2, 1}, 1));
  f.Open(SpecOf("all_reduce", 16, {0, 1}));
  PushOf(f, 0, 1);
  PushOf(f, 1, 1);
  const Effects out = f.Flush();
  CHECK(Fixture::Entries<wire::Contribute>(out).empty());
  const auto reduces = Fixture::Of<ReduceSlice>(out);
  REQUIRE(reduces.size() == 1);
  CHECK(reduces[0].is_final);
  CHECK(reduces[0].inputs == std::vector<LocalRank>{LocalRank{0}, LocalRank{1}});
  const auto complete = Fixture::Of<CompleteRound>(f.Reduced(reduces[0].ticket));
  REQUIRE(complete.size() == 1);
  CHECK(complete[0].ranks_summed == 2);
}

TEST_CASE("AgentCore: gather gives results only to the root", "[pipeline]") {
  Fixture f(1);
  f.Start(MakeView(1, {1, 1}, 1));
  f.Open(SpecOf("gather", 16, {0, 1}));
  PushOf(f, 0, 1);
  const auto sent = Fixture::Entries<wire::Contribute>(f.Flush());
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].form == wire::Form::kEmpty);
  CHECK_FALSE(sent[0].wants_result);
  CHECK(sent[1].form == wire::Form::kInline);
  CHECK_FALSE(sent[1].wants_result);
  ResultOf(f, sent[0], 64);
  const Effects last = ResultOf(f, sent[1], 64);
  CHECK(Fixture::Of<CompleteRound>(last).size() == 1);
  CHECK(Fixture::Of<SliceArrived>(f.all).empty());
}

TEST_CASE("AgentCore: ranks that disagree on a node that is alone fail that round only",
          "[pipeline]") {
  Fixture f(0, 2);
  f.Start(MakeView(1, {2}, 0));
  f.Open(SpecOf("all_reduce", 16, {}));
  PushOf(f, 0, 1, {64});
  const auto complete = Fixture::Of<CompleteRound>(PushOf(f, 1, 1, {32}));
  REQUIRE(complete.size() == 1);
  CHECK(complete[0].status == Status::kMismatch);
  CHECK(complete[0].text ==
        "round 1 of tensor 't': rank 0 (local rank 0 of node 0, pid 4000) gives 64 bytes, rank 1 "
        "(local rank 1 of node 0, pid 4001) gives 32 bytes");
  CHECK(Fixture::Of<ReduceSlice>(f.Flush()).empty());

  PushOf(f, 0, 2);
  PushOf(f, 1, 2);
  const auto reduces = Fixture::Of<ReduceSlice>(f.Flush());
  REQUIRE(reduces.size() == 1);
  const auto next = Fixture::Of<CompleteRound>(f.Reduced(reduces[0].ticket));
  REQUIRE(next.size() == 1);
  CHECK(next[0].status == Status::kOk);
}

TEST_CASE("AgentCore: a rank that has joined agrees with whatever the others of its node give",
          "[pipeline]") {
  const bool comes_first = GENERATE(true, false);
  Fixture f(0, 3);
  f.Start(MakeView(1, {3, 1}, 1));
  f.Open(SpecOf("all_reduce", 16, {}));
  if (comes_first) PushOf(f, 0, 1, {}, kFitsAll);
  PushOf(f, 1, 1, {}, 7);
  if (!comes_first) PushOf(f, 0, 1, {}, kFitsAll);

  SECTION("The others agree, and the node sends what they say") {
    PushOf(f, 2, 1, {}, 7);
    const auto reduces = Fixture::Of<ReduceSlice>(f.Flush());
    REQUIRE(reduces.size() == 1);
    f.Reduced(reduces[0].ticket);
    const auto sent = Fixture::Entries<wire::Contribute>(f.Flush());
    REQUIRE(sent.size() == 1);
    CHECK(sent[0].signature == 7);
  }
  SECTION("The others disagree among themselves") {
    PushOf(f, 2, 1, {}, 8);
    const Effects out = f.Flush();
    const auto sent = Fixture::Entries<wire::Contribute>(out);
    REQUIRE(sent.size() == 1);
    CHECK(sent[0].form == wire::Form::kDisagreement);
    const std::string text = Fixture::Of<Send>(out).back().texts[0];
    CHECK(text.find("rank 1 ") != std::string::npos);
    CHECK(text.find("rank 2 ") != std::string::npos);
    CHECK(text.find("bytes") == std::string::npos);
  }
}

TEST_CASE("AgentCore: a round that ended on a mismatch is not reported as aborted", "[pipeline]") {
  Fixture f(0, 2);
  f.Start(MakeView(1, {2}, 0));
  f.Open(SpecOf("all_reduce", 16, {}));
  PushOf(f, 0, 1, {64});
  PushOf(f, 1, 1, {32});
  const Effects again = PushOf(f, 0, 1, {64});
  CHECK(Fixture::Of<CompleteRound>(again).empty());
  CHECK(Fixture::Of<FailRank>(again).size() == 1);
}

TEST_CASE(
    "AgentCore: owners hear that ranks of this node disagree, and their answer ends the round",
    "[pipeline]") {
  Fixture f(0, 2);
  f.Start(MakeView(1, {2, 1}, 1));
  f.Open(SpecOf("all_reduce", 16, {}));
  PushOf(f, 0, 1, {}, SignatureOf(f.member.tensors()[0]->spec.collective, 1));
  PushOf(f, 1, 1, {}, SignatureOf(f.member.tensors()[0]->spec.collective, 2));
  const Effects out = f.Flush();
  const auto sent = Fixture::Entries<wire::Contribute>(out);
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].form == wire::Form::kDisagreement);
  CHECK(sent[0].length_bytes == 0);
  const auto sends = Fixture::Of<Send>(out);
  REQUIRE(sends.back().texts.size() == 1);
  CHECK(sends.back().texts[0].find("gives f32[1] sum, rank 1") != std::string::npos);

  const auto complete = Fixture::Of<CompleteRound>(DisagreementOf(f, sent[0], "they differ"));
  REQUIRE(complete.size() == 1);
  CHECK(complete[0].status == Status::kMismatch);
  CHECK(complete[0].text == "they differ");

  PushOf(f, 0, 2);
  PushOf(f, 1, 2);
  const auto reduces = Fixture::Of<ReduceSlice>(f.Flush());
  REQUIRE(reduces.size() == 1);
  f.Reduced(reduces[0].ticket);
  const auto next = Fixture::Entries<wire::Contribute>(f.Flush());
  REQUIRE(next.size() == 1);
  CHECK(next[0].form == wire::Form::kInline);
  CHECK(next[0].round == Round{2});
}

TEST_CASE("AgentCore: a push with impossible lengths is refused", "[pipeline]") {
  const auto refused = [](std::vector<uint32_t> lengths) {
    Fixture f;
    f.Start(MakeView(1, {1, 1}, 1));
    f.Open(SpecOf("all_gather", 16, {0, 1}));
    const auto failed = Fixture::Of<FailRank>(PushOf(f, 0, 1, std::move(lengths)));
    return failed.empty() ? std::string() : failed[0].text;
  };
  CHECK(refused({64}).find("with 1 length for 2 parts") != std::string::npos);
  CHECK(refused({68, 0}).find("a part of 68 bytes; a part has at most 64") != std::string::npos);
  CHECK(refused({30, 0}).find("in elements of 4") != std::string::npos);
  CHECK(refused({60, 0}).empty());
}

TEST_CASE("AgentCore: a rank outside the group may neither declare nor push", "[pipeline]") {
  Fixture f(0, 2);
  f.Start(MakeView(1, {2, 1}, 1));
  const TensorSpec spec = SpecOf("all_reduce", 16, {0, 2});
  const Effects out = f.Declare(0, spec);
  CHECK(Fixture::Of<DeclareReply>(f.Declare(1, spec))[0].status == Status::kInvalid);
  f.AgreeTo(f.Allocated(0));
  const auto failed = Fixture::Of<FailRank>(PushOf(f, 1, 1));
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].text.find("which it takes no part in") != std::string::npos);
  PushOf(f, 0, 1);
  CHECK(f.member.tensors()[0]->contributed());
}

TEST_CASE("AgentCore: a tensor that lost a rank stays dead when the rank's place is taken again",
          "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.Open(SpecOf("all_gather", 16, {0, 1}));
  view::View alone = MakeView(2, {1}, 1);
  f.OnView(alone);
  f.AnswerAll();
  f.Decide("t", wire::Verdict::kRedo, 1);
  view::View taken = MakeView(3, {1, 1}, 1);
  taken.members[1].id.incarnation = Incarnation{555};
  f.OnView(taken);
  const Effects out = f.AnswerAll();
  const auto declared = Fixture::Entries<wire::Declare>(out);
  REQUIRE(declared.size() == 1);
  CHECK(declared[0].root_rank == wire::kNoRank);
  f.Decide("t", wire::Verdict::kRedo, 1);
  f.AgreeTo(out);
  const auto failed = Fixture::Of<FailTensor>(PushOf(f, 0, 1));
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].status == Status::kAborted);
}

TEST_CASE("AgentCore: a reduction over a group goes on with the ranks that are left",
          "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1, 1}, 1));
  f.Open(SpecOf("all_reduce", 16, {0, 1}));
  PushOf(f, 0, 1);
  CHECK(Fixture::Entries<wire::Contribute>(f.Flush()).size() == 1);
  view::View left = MakeView(2, {1, 1, 1}, 1);
  left.members.erase(left.members.begin() + 1);
  f.OnView(left);
  f.AgreeTo(f.AnswerAll());
  f.Decide("t", wire::Verdict::kRedo, 1);
  // No other node takes part in it any more.
  const Effects out = f.Flush();
  CHECK(Fixture::Entries<wire::Contribute>(out).empty());
  const auto reduces = Fixture::Of<ReduceSlice>(out);
  REQUIRE(reduces.size() == 1);
  const auto complete = Fixture::Of<CompleteRound>(f.Reduced(reduces[0].ticket));
  REQUIRE(complete.size() == 1);
  CHECK(complete[0].ranks_summed == 1);
}

TEST_CASE("AgentCore: a round is done again when others abort the round before it", "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1}, 1));
  f.Open(SpecOf("all_to_all", 16, {0, 1}));
  PushOf(f, 0, 1, {}, 1);
  const Effects first = f.Flush();
  f.Reduced(Fixture::Of<ReduceSlice>(first).at(0).ticket);
  for (const auto& entry : Fixture::Entries<wire::Contribute>(first)) {
    DisagreementOf(f, entry, "they differ");
  }
  REQUIRE(f.member.tensors()[0]->held.round == Round{1});
  PushOf(f, 0, 2);
  const auto reduces = Fixture::Of<ReduceSlice>(f.Flush());
  REQUIRE(reduces.size() == 1);
  f.Reduced(reduces[0].ticket);

  f.OnView(MakeView(2, {1, 1}, 1));
  f.AgreeTo(f.AnswerAll());
  f.Decide("t", wire::Verdict::kAbort, 1);
  const auto again = Fixture::Of<ReduceSlice>(f.Flush());
  REQUIRE(again.size() == 1);
  f.Reduced(again[0].ticket);
  CHECK(f.member.tensors()[0]->partial.have_count == 1);
}

TEST_CASE("AgentCore: a part leaves for the aggregator beside the rank that gets it",
          "[pipeline]") {
  Fixture f;
  view::View view = MakeView(1, {1, 1}, 2);
  view.members[0].host_id = view.aggregators[1].host_id = "x";
  view.members[1].host_id = view.aggregators[0].host_id = "y";
  f.Start(view);
  f.Open(SpecOf("reduce_scatter", 16 * kKiB, {0, 1}));
  PushOf(f, 0, 1);
  std::vector<uint32_t> part_by_owner(2, 99);
  for (const Send& send : Fixture::Of<Send>(f.Flush())) {
    if (send.type != wire::FrameType::kContribute) continue;
    for (const auto& [index, owner] : f.member.owners()) {
      if (owner.connection != send.connection) continue;
      const auto& entries = std::get<std::vector<wire::Contribute>>(send.entries);
      REQUIRE(entries.size() == 1);
      part_by_owner[index.value()] = entries[0].slice.value();
    }
  }
  CHECK(part_by_owner == std::vector<uint32_t>{1, 0});
}

TEST_CASE(
    "AgentCore: a group is declared by its places, even when ranks follow a view that lacks one",
    "[pipeline]") {
  Fixture f;
  f.Start(MakeView(1, {1, 1, 1, 1}, 1));
  f.Open(SpecOf("all_reduce", 16, {0, 1, 2}));
  view::View left = MakeView(2, {1, 1, 1, 1}, 1);
  left.members.erase(left.members.begin() + 1);
  f.OnView(left);
  f.AgreeTo(f.AnswerAll());
  f.Decide("t", wire::Verdict::kRedo, 1);
  f.Do([&](Effects& out) { CHECK(f.member.OnRanksFollow(Epoch{2}, out)); });
  left.epoch = Epoch{3};
  f.OnView(left);
  const auto declared = Fixture::Entries<wire::Declare>(f.AnswerAll());
  REQUIRE(declared.size() == 1);
  CHECK(declared[0].group == view::Group{{NodeRank{0}, LocalRank{0}},
                                         {NodeRank{1}, LocalRank{0}},
                                         {NodeRank{2}, LocalRank{0}}});
}

// A tensor of all ranks whose slices are encoded as twice; rank 0 has pushed round 1 of it.
struct EncodedFixture : Fixture {
  explicit EncodedFixture(uint64_t count = 16) {
    TensorSpec spec = SpecOf("all_reduce", count, {});
    spec.collective.encoding = Encoding::kTwice;
    Start(MakeView(3, {1, 1}, 1));
    Open(spec);
    Push(0, 0, 1);
  }
  const AgentTensor& tensor() const { return *member.FindTensor(Key("t")); }
  Effects Encoded(uint64_t ticket, uint32_t travel_bytes) {
    return Do([&](Effects& out) {
      member.OnReduced(ticket, travel_bytes, now_ns, out);
      member.Flush(now_ns, out);
    });
  }
  Effects Decoded(uint64_t ticket, bool is_sound) {
    return Do([&](Effects& out) { member.OnDecoded(ticket, is_sound, out); });
  }
  // Sends slice 0 of the open round, and returns its entry.
  wire::Contribute Send(uint32_t travel_bytes) {
    const ReduceSlice reduce = Of<ReduceSlice>(Flush()).at(0);
    return Entries<wire::Contribute>(Encoded(reduce.ticket, travel_bytes)).at(0);
  }
  Effects Result(const wire::Contribute& entry, uint32_t travel_bytes) {
    std::vector<std::byte> bytes(travel_bytes);
    return From<wire::Result>(tensor().slices[0].owner.value(), wire::FrameType::kResult,
                              {{.key = entry.key,
                                .round = entry.round,
                                .slice = entry.slice,
                                .rank_count = 2,
                                .length_bytes = entry.length_bytes,
                                .travel_bytes = travel_bytes,
                                .form = wire::Form::kInline,
                                .sum_epoch = Epoch{3},
                                .bytes = bytes}});
  }
};

TEST_CASE("AgentCore: a single rank's contribution is encoded before it leaves", "[pipeline]") {
  EncodedFixture f;
  const Effects out = f.Flush();
  REQUIRE(f.Of<ReduceSlice>(out).size() == 1);
  const ReduceSlice reduce = f.Of<ReduceSlice>(out)[0];
  CHECK_FALSE(reduce.is_final);
  CHECK(reduce.target.memory == Memory::kSendBuffer);
  CHECK(reduce.target.length_bytes == 64);
  // Until it is encoded, credit has to hold the most that it may take.
  const AggregatorIndex owner = f.tensor().slices[0].owner;
  CHECK(f.member.queue().InFlightBytes(owner) == 128);
  const auto sent = f.Entries<wire::Contribute>(f.Encoded(reduce.ticket, 100));
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].length_bytes == 64);
  CHECK(sent[0].travel_bytes == 100);
  CHECK(f.member.queue().InFlightBytes(owner) == 100);
}

TEST_CASE("AgentCore: an encoded result is visible when it is decoded", "[pipeline]") {
  EncodedFixture f;
  const wire::Contribute entry = f.Send(128);
  const Effects out = f.Result(entry, 120);
  REQUIRE(f.Of<CopyInline>(out).size() == 1);
  CHECK(f.Of<CopyInline>(out)[0].target.memory == Memory::kArrivals);
  REQUIRE(f.Of<DecodeSlice>(out).size() == 1);
  const DecodeSlice decode = f.Of<DecodeSlice>(out)[0];
  CHECK(decode.encoding == Encoding::kTwice);
  CHECK(decode.source.length_bytes == 120);
  CHECK(decode.target.memory == Memory::kResult);
  CHECK(decode.target.length_bytes == 64);
  CHECK(f.Of<CompleteRound>(out).empty());
  CHECK(f.member.Wants(decode.ticket));
  SECTION("It is sound") {
    const Effects done = f.Decoded(decode.ticket, true);
    CHECK(f.Of<SliceArrived>(done).size() == 1);
    REQUIRE(f.Of<CompleteRound>(done).size() == 1);
    CHECK(f.Of<CompleteRound>(done)[0].status == Status::kOk);
    CHECK(f.Of<CompleteRound>(done)[0].ranks_summed == 2);
  }
  SECTION("It is no encoding: the job fails, and nobody sees it") {
    const Effects failed = f.Decoded(decode.ticket, false);
    CHECK(f.Of<CompleteRound>(failed).empty());
    REQUIRE(f.Of<FailJob>(failed).size() == 1);
    CHECK_THAT(f.Of<FailJob>(failed)[0].text,
               Catch::Contains("tensor 't'") && Catch::Contains("no twice encoding of 64 bytes"));
  }
  SECTION("It is no encoding, and a new view's fences are not passed: the same") {
    const std::string owner = f.member.views().present()->aggregators[0].name;
    f.OnView(MakeView(4, {1, 1}, 1));
    const Effects failed = f.Decoded(decode.ticket, false);
    REQUIRE(f.Of<FailJob>(failed).size() == 1);
    CHECK_THAT(f.Of<FailJob>(failed)[0].text, Catch::Contains("aggregator '" + owner + "' sent"));
  }
  SECTION("The same result again is not decoded again") { CHECK(f.Result(entry, 120).empty()); }
  SECTION("The connection breaks meanwhile: the slice is not sent again, and the round ends") {
    f.Broken(f.tensor().slices[0].owner.value());
    CHECK(f.Of<CompleteRound>(f.Decoded(decode.ticket, true)).size() == 1);
  }
  SECTION("A new view comes meanwhile, and it is decoded before the fence: it counts") {
    f.OnView(MakeView(4, {1, 1}, 1));
    CHECK(f.Of<CompleteRound>(f.Decoded(decode.ticket, true)).size() == 1);
  }
  SECTION("A new view comes meanwhile: after the fence it is not wanted any more") {
    f.OnView(MakeView(4, {1, 1}, 1));
    f.AnswerAll();
    CHECK_FALSE(f.member.Wants(decode.ticket));
    CHECK(f.Decoded(decode.ticket, true).empty());
  }
}

TEST_CASE("AgentCore: a result that takes more than its encoding may need is not shown",
          "[pipeline]") {
  EncodedFixture f;
  const wire::Contribute entry = f.Send(128);
  CHECK(f.Result(entry, 129).empty());
  CHECK(f.member.counters().results_ignored == 1);
}

TEST_CASE("AgentCore: what is encoded is written to its place among what is encoded",
          "[pipeline]") {
  EncodedFixture f(40'000);
  const AgentTensor& tensor = f.tensor();
  REQUIRE(tensor.slices.size() > 1);
  Effects out;
  for (const ReduceSlice& reduce : f.Of<ReduceSlice>(f.Flush())) {
    const Effects more = f.Encoded(reduce.ticket, 20'000);
    out.insert(out.end(), more.begin(), more.end());
  }
  const auto writes = f.Of<WriteSlice>(out);
  REQUIRE(writes.size() == tensor.slices.size());
  for (const WriteSlice& write : writes) {
    const view::Slice& slice = tensor.slices[write.source.slice.value()];
    const uint64_t begin = tensor.owners.at(slice.owner).slot.address;
    CHECK(write.target.address == begin + 2 * slice.slot_offset_bytes);
    CHECK(write.source.offset_bytes == slice.offset_bytes);
    CHECK(write.source.length_bytes == 20'000);
  }
}

TEST_CASE("AgentCore: a node that is the whole job encodes nothing", "[pipeline]") {
  Fixture f;
  f.Start(MakeView(3, {1}, 0));
  TensorSpec spec = SpecOf("all_reduce", 16, {});
  spec.collective.encoding = Encoding::kTwice;
  f.Open(spec);
  f.Push(0, 0, 1);
  const auto reduces = f.Of<ReduceSlice>(f.Flush());
  REQUIRE(reduces.size() == 1);
  CHECK(reduces[0].is_final);
  CHECK(f.Of<CompleteRound>(f.Reduced(reduces[0].ticket)).size() == 1);
  CHECK(f.member.queue().InFlightBytes(AggregatorIndex{0}) == 0);
}

}  // namespace
}  // namespace talweg::pipeline
