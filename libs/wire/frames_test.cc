// SPDX-License-Identifier: Apache-2.0
#include "libs/wire/frames.h"

#include <cstring>

#include <catch2/catch.hpp>

#include "libs/base/random.h"

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

TEST_CASE("Frames: every type comes back as it was written", "[wire]") {
  const std::vector<Hello> hello = {{{NodeRank{1}, Incarnation{2}}, 3, 4, "job", "node-b"}};
  CHECK(std::get<std::vector<Hello>>(RoundTrip(FrameType::kHello, hello).entries) == hello);
  const std::vector<Welcome> welcome = {{WelcomeStatus::kNotInView, Incarnation{9}, 7, "no"}};
  CHECK(std::get<std::vector<Welcome>>(RoundTrip(FrameType::kWelcome, welcome).entries) == welcome);
  const std::vector<Declare> declare = {
      {TensorKey{1}, "w", DType::kF32, Op::kSum, 0, 2, 100, {RemoteRef{1, 2}, RemoteRef{3, 4}}},
      {TensorKey{2}, "bias", DType::kBF16, Op::kCopy, 5, 6, 0, {}}};
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
  const std::vector<Waiting> waiting = {{TensorKey{1}, Round{5}, 12345, {0, 3}, {0, 7}}};
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
      {TensorKey{1}, Round{2}, SliceIndex{3}, 4, Mode::kSum, Form::kInline, true, Epoch{0},
       payload},
      {TensorKey{5}, Round{6}, SliceIndex{7}, 8, Mode::kCopy, Form::kEmpty, false, Epoch{9}, {}}};
  const Frame frame = RoundTrip(FrameType::kContribute, contributions, 99);
  CHECK(frame.header.credit_bytes == 99);
  const auto& back = std::get<std::vector<Contribute>>(frame.entries);
  REQUIRE(back.size() == 2);
  CHECK(std::equal(back[0].bytes.begin(), back[0].bytes.end(), payload.begin(), payload.end()));
  CHECK(back[1].form == Form::kEmpty);
  CHECK_FALSE(back[1].wants_result);
  CHECK(back[1].sum_epoch == Epoch{9});

  const std::vector<Result> results = {
      {TensorKey{1}, Round{2}, SliceIndex{3}, 4, Form::kInline, Epoch{7}, payload}};
  const Frame result = RoundTrip(FrameType::kResult, results);
  CHECK(std::get<std::vector<Result>>(result.entries)[0].bytes.size() == payload.size());
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

TEST_CASE("ParseFrame: what is no frame is named", "[wire]") {
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
  CHECK(ErrorOf(bad).find("version 9.1, this process 1.1") != std::string::npos);
  bad = good;
  bad[6] = std::byte{200};
  CHECK(ErrorOf(bad) != "");
  bad = good;
  const uint32_t huge = 0xffffffff;
  std::memcpy(bad.data() + 28, &huge, 4);  // entry_count
  CHECK(ErrorOf(bad) != "");
  std::memcpy(bad.data() + 24, &huge, 4);  // body_bytes: a gigabyte's length field
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

TEST_CASE("ParseFrame: a Waiting of version 1.0 says of nobody that it is absent", "[wire]") {
  FrameWriter writer(FrameType::kWaiting, JobId{1}, Epoch{1});
  REQUIRE(writer.Add(Waiting{.key = TensorKey{1}, .missing_nodes = {0, 3}}));
  std::vector<std::byte> bytes = writer.Take();
  uint32_t entry_bytes = 0;
  std::memcpy(&entry_bytes, bytes.data() + kHeaderBytes, 4);
  entry_bytes -= 4;  // The count of absent_ns, and what is padded for it.
  std::memcpy(bytes.data() + kHeaderBytes, &entry_bytes, 4);
  bytes.resize(bytes.size() - 8);
  const auto body_bytes = static_cast<uint32_t>(bytes.size() - kHeaderBytes);
  std::memcpy(bytes.data() + 24, &body_bytes, 4);
  const auto parsed = ParseFrame(bytes);
  REQUIRE(std::holds_alternative<Frame>(parsed));
  const auto& entries = std::get<std::vector<Waiting>>(std::get<Frame>(parsed).entries);
  CHECK(entries.at(0).missing_nodes == std::vector<uint32_t>{0, 3});
  CHECK(entries.at(0).absent_ns == std::vector<uint64_t>{0, 0});
}

TEST_CASE("ParseFrame: random damage is refused or parsed, never more", "[wire]") {
  Random random(3);
  FrameWriter writer(FrameType::kDeclare, JobId{1}, Epoch{1});
  REQUIRE(writer.Add(Declare{.name = "layer.weight", .dtype = DType::kF32, .op = Op::kSum}));
  REQUIRE(writer.Add(Declare{.name = "layer.bias", .dtype = DType::kF32, .op = Op::kSum}));
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
