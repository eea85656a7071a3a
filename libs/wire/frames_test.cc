// SPDX-License-Identifier: Apache-2.0
#include "libs/wire/frames.h"

#include <cstring>

#include <catch2/catch.hpp>

#include "libs/base/random.h"
#include "libs/wire/travel_lengths.h"

namespace talweg::wire {
namespace {

template <typename Entry>
Frame RoundTrip(FrameType type, const std::vector<Entry>& entries, uint64_t credit_bytes = 0) {
  FrameWriter writer(type, JobId{11}, Epoch{22});
  for (const Entry& entry : entries) REQUIRE(writer.Add(entry));
  static std::vector<std::byte> bytes;  // Outlives the spans in the parsed frame.
  bytes = writer.Take(credit_bytes);
  auto parsed = ParseFrame(bytes);
  if (const ParseError* error = std::get_if<ParseError>(&parsed)) FAIL(error->text);
  return std::get<Frame>(parsed);
}

TEST_CASE("Frames: every type is read back as it was written", "[wire]") {
  const std::vector<Hello> hello = {{{NodeRank{1}, Incarnation{2}}, 3, 4, "job", "node-b"}};
  CHECK(std::get<std::vector<Hello>>(RoundTrip(FrameType::kHello, hello).entries) == hello);
  const std::vector<Welcome> welcome = {{WelcomeStatus::kNotInView, Incarnation{9}, 7, "no"}};
  CHECK(std::get<std::vector<Welcome>>(RoundTrip(FrameType::kWelcome, welcome).entries) == welcome);
  const std::vector<Declare> declare = {
      {.key = TensorKey{1},
       .name = "w",
       .collective = Collective::Of(DType::kF32, Op::kSum, 100),
       .by_rank = 2,
       .result = {RemoteRef{1, 2}, RemoteRef{3, 4}}},
      {.key = TensorKey{2},
       .name = "bias",
       .collective = {.dtype = DType::kBF16,
                      .op = Op::kCopy,
                      .gives = Share::kOwn,
                      .gets = Share::kRoot,
                      .element_count = 0,
                      .patience_ms = 20},
       .group = {{NodeRank{0}, LocalRank{1}}, {NodeRank{3}, LocalRank{0}}},
       .root_rank = 5,
       .by_rank = 6}};
  CHECK(std::get<std::vector<Declare>>(RoundTrip(FrameType::kDeclare, declare).entries) == declare);
  const std::vector<Declared> declared = {
      {TensorKey{1}, DeclaredStatus::kMismatch, RemoteRef{5, 6}, Round{8}, "names differ"}};
  CHECK(std::get<std::vector<Declared>>(RoundTrip(FrameType::kDeclared, declared).entries) ==
        declared);
  const std::vector<Report> report = {
      {TensorKey{1}, Round{4}, Epoch{2}, Round{5}, Epoch{3}, {1, 2, 3}}};
  CHECK(std::get<std::vector<Report>>(RoundTrip(FrameType::kReport, report).entries) == report);
  const std::vector<Decision> decision = {
      {TensorKey{1}, Round{5}, Verdict::kFinish, Epoch{3}, {0, 1, 1}, ""}};
  CHECK(std::get<std::vector<Decision>>(RoundTrip(FrameType::kDecision, decision).entries) ==
        decision);
  const std::vector<Refused> refused = {
      {RefusedReason::kWrongRound, TensorKey{1}, Round{5}, SliceIndex{6}, "round"}};
  CHECK(std::get<std::vector<Refused>>(RoundTrip(FrameType::kRefused, refused).entries) == refused);
  const std::vector<Failed> failed = {{TensorKey{0}, Round{0}, FailedCode::kJobFailed, "x"}};
  CHECK(std::get<std::vector<Failed>>(RoundTrip(FrameType::kFailed, failed).entries) == failed);
  const std::vector<Waiting> waiting = {{TensorKey{1}, Round{5}, 12345, {0, 3}, {0, 7}, {3}}};
  CHECK(std::get<std::vector<Waiting>>(RoundTrip(FrameType::kWaiting, waiting).entries) == waiting);
  for (const FrameType type :
       {FrameType::kCredit, FrameType::kFence, FrameType::kFenceAck, FrameType::kGoodbye}) {
    FrameWriter writer(type, JobId{1}, Epoch{2});
    const std::vector<std::byte> bytes = writer.Take(77);
    const auto parsed = ParseFrame(bytes);
    REQUIRE(std::holds_alternative<Frame>(parsed));
    CHECK(std::get<Frame>(parsed).header.credit_bytes == 77);
    CHECK(std::get<Frame>(parsed).header.type == type);
  }
}

TEST_CASE("Frames: inline bytes travel inside entries", "[wire]") {
  std::vector<std::byte> payload(13, std::byte{0x5a});
  const std::vector<Contribute> contributions = {
      {.key = TensorKey{1},
       .round = Round{2},
       .slice = SliceIndex{3},
       .rank_count = 4,
       .length_bytes = 13,
       .form = Form::kInline,
       .signature = 0x0102030405060708,
       .bytes = payload},
      {.key = TensorKey{5},
       .round = Round{6},
       .slice = SliceIndex{7},
       .rank_count = 8,
       .mode = Mode::kCopy,
       .form = Form::kEmpty,
       .wants_result = false,
       .sum_epoch = Epoch{9}},
      {.key = TensorKey{5}, .form = Form::kDisagreement, .bytes = payload, .priority = -7}};
  const Frame frame = RoundTrip(FrameType::kContribute, contributions, 99);
  CHECK(frame.header.credit_bytes == 99);
  const auto& back = std::get<std::vector<Contribute>>(frame.entries);
  REQUIRE(back.size() == 3);
  CHECK(back[0].length_bytes == 13);
  CHECK(back[0].signature == 0x0102030405060708);
  CHECK(back[2].form == Form::kDisagreement);
  CHECK(back[2].bytes.size() == payload.size());
  CHECK(back[0].priority == 0);
  CHECK(back[2].priority == -7);
  CHECK(std::equal(back[0].bytes.begin(), back[0].bytes.end(), payload.begin(), payload.end()));
  CHECK(back[1].form == Form::kEmpty);
  CHECK_FALSE(back[1].wants_result);
  CHECK(back[1].sum_epoch == Epoch{9});

  const std::vector<Result> results = {
      {TensorKey{1}, Round{2}, SliceIndex{3}, 4, 26, 13, Form::kInline, Epoch{7}, payload}};
  const Frame result = RoundTrip(FrameType::kResult, results);
  const Result& came = std::get<std::vector<Result>>(result.entries)[0];
  CHECK(came.bytes.size() == payload.size());
  CHECK(came.length_bytes == 26);
  CHECK(came.travel_bytes == 13);
}

TEST_CASE("FrameWriter: a full frame takes no more, and starts again", "[wire]") {
  const std::vector<std::byte> payload(kInlineBytesMax, std::byte{1});
  FrameWriter writer(FrameType::kContribute, JobId{1}, Epoch{1});
  const Contribute entry{.key = TensorKey{1}, .form = Form::kInline, .bytes = payload};
  uint32_t count = 0;
  while (writer.Add(entry)) ++count;
  CHECK(count == 7);
  const std::vector<std::byte> bytes = writer.Take();
  CHECK(bytes.size() <= kFrameBytesMax);
  CHECK(std::holds_alternative<Frame>(ParseFrame(bytes)));
  CHECK(writer.entry_count() == 0);
  CHECK(writer.Add(entry));
}

std::string ErrorOf(std::span<const std::byte> bytes) {
  const auto parsed = ParseFrame(bytes);
  const ParseError* error = std::get_if<ParseError>(&parsed);
  return error ? error->text : "";
}

TEST_CASE("ParseFrame: the error says why bytes are no frame", "[wire]") {
  FrameWriter writer(FrameType::kHello, JobId{1}, Epoch{1});
  REQUIRE(writer.Add(Hello{.job_name = "job"}));
  const std::vector<std::byte> good = writer.Take();
  CHECK(ErrorOf(good) == "");

  CHECK(ErrorOf(std::span(good).first(39)).find("shorter than its header") != std::string::npos);
  CHECK(ErrorOf(std::span(good).first(good.size() - 1)).find("body_bytes") != std::string::npos);
  std::vector<std::byte> bad = good;
  bad[0] = std::byte{0};
  CHECK(ErrorOf(bad).find("magic") != std::string::npos);
  bad = good;
  bad[4] = std::byte{9};
  CHECK(ErrorOf(bad).find("version 9.1, this process 3.1") != std::string::npos);
  bad = good;
  bad[6] = std::byte{200};
  CHECK(ErrorOf(bad) != "");
  bad = good;
  const uint32_t huge = 0xffffffff;
  std::memcpy(bad.data() + 28, &huge, 4);  // entry_count
  CHECK(ErrorOf(bad) != "");
  std::memcpy(bad.data() + 24, &huge, 4);  // This is the field body_bytes.
  CHECK(ErrorOf(bad) != "");
}

TEST_CASE("ParseFrame: a newer minor version may append to entries", "[wire]") {
  FrameWriter writer(FrameType::kFailed, JobId{1}, Epoch{1});
  REQUIRE(writer.Add(Failed{.text = "text"}));
  std::vector<std::byte> bytes = writer.Take();
  uint32_t entry_bytes = 0;
  std::memcpy(&entry_bytes, bytes.data() + kHeaderBytes, 4);
  const size_t padded = (entry_bytes + 7) / 8 * 8;
  entry_bytes = static_cast<uint32_t>(padded + 8);
  std::memcpy(bytes.data() + kHeaderBytes, &entry_bytes, 4);
  bytes.resize(bytes.size() + 8, std::byte{0xee});
  const auto body_bytes = static_cast<uint32_t>(bytes.size() - kHeaderBytes);
  std::memcpy(bytes.data() + 24, &body_bytes, 4);
  CHECK(ErrorOf(bytes) == "");
}

TEST_CASE("TravelLengthsAgree: plain bytes are all there, encoded ones at most the bound",
          "[wire]") {
  const std::vector<std::byte> bytes(200);
  const auto agree = [&](Encoding encoding, uint32_t length, uint32_t travel) {
    return TravelLengthsAgree(Result{.length_bytes = length, .travel_bytes = travel}, encoding);
  };
  CHECK(agree(Encoding::kPlain, 100, 100));
  CHECK_FALSE(agree(Encoding::kPlain, 100, 99));
  CHECK_FALSE(agree(Encoding::kPlain, 100, 101));
  CHECK(agree(Encoding::kRuns, 100, 1));
  CHECK(agree(Encoding::kRuns, 100, 128));
  CHECK_FALSE(agree(Encoding::kRuns, 100, 129));
  CHECK(agree(Encoding::kTwice, 100, 256));
  CHECK_FALSE(agree(Encoding::kTwice, 100, 257));

  const auto inside = [&](size_t count, uint32_t travel) {
    return TravelLengthsAgree(Contribute{.length_bytes = 100,
                                         .travel_bytes = travel,
                                         .form = Form::kInline,
                                         .bytes = std::span(bytes).first(count)},
                              Encoding::kRuns);
  };
  CHECK(inside(90, 90));
  CHECK_FALSE(inside(89, 90));
  CHECK_FALSE(inside(91, 90));
}

TEST_CASE("ParseFrame: a group that is not in order is refused", "[wire]") {
  FrameWriter writer(FrameType::kDeclare, JobId{1}, Epoch{1});
  REQUIRE(writer.Add(Declare{.name = "w",
                             .collective = Collective::Of(DType::kF32, Op::kSum, 4),
                             .group = {{NodeRank{2}, LocalRank{1}}, {NodeRank{2}, LocalRank{1}}}}));
  CHECK(ErrorOf(writer.Take()) != "");
}

TEST_CASE("ParseFrame: random damage is refused or parsed, and does nothing else", "[wire]") {
  Random random(3);
  FrameWriter writer(FrameType::kDeclare, JobId{1}, Epoch{1});
  REQUIRE(writer.Add(
      Declare{.name = "layer.weight", .collective = Collective::Of(DType::kF32, Op::kSum, 4)}));
  REQUIRE(writer.Add(
      Declare{.name = "layer.bias", .collective = Collective::Of(DType::kF32, Op::kSum, 4)}));
  const std::vector<std::byte> good = writer.Take();
  for (int trial = 0; trial < 20000; ++trial) {
    std::vector<std::byte> bytes = good;
    for (uint64_t i = 1 + random.Below(4); i > 0; --i) {
      bytes[random.Below(bytes.size())] = std::byte(random.Next());
    }
    bytes.resize(bytes.size() - random.Below(2) * random.Below(bytes.size()));
    (void)ParseFrame(bytes);
  }
  SUCCEED();
}

}  // namespace
}  // namespace talweg::wire
