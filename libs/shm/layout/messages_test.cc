// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/layout/messages.h"

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace talweg::shm {
namespace {

std::vector<std::byte> Encode(const Message& message) {
  std::vector<std::byte> bytes(kEncodedBytesMax);
  bytes.resize(EncodeMessage(message, bytes));
  return bytes;
}

std::vector<Message> Samples() {
  static const std::string text(kTextBytesMax, 't');
  static const std::string name(kTensorNameBytesMax, 'n');
  static const std::vector<uint32_t> group(kGroupRanksMax, 77);
  Declared declared{.status = RankStatus::kOk,
                    .tensor = 3,
                    .tensor_bytes = uint64_t{1} << 34,
                    .completed_round = 99,
                    .contribution = {7, 64},
                    .result = {{8, 128}, {9, uint64_t{1} << 40}},
                    .text = text,
                    .segment_count = 2};
  declared.segments[0] = {7, SegmentKind::kContribution, 1 << 26};
  declared.segments[1] = {8, SegmentKind::kResult, 1 << 27};
  return {
      {.request = 0,
       .fd_count = 0,
       .body = Hello{.pid = 77, .wanted_local_rank = 3, .client_name = "py"}},
      {.request = 0,
       .fd_count = 1,
       .body = Welcome{.status = RankStatus::kOk,
                       .text = "",
                       .rank = 5,
                       .size = 8,
                       .local_rank = 1,
                       .local_size = 4,
                       .node_rank = 1,
                       .node_count = 2,
                       .ring_capacity = 4096,
                       .tensors_max = 65536,
                       .control_bytes = 123456,
                       .job_name = "job"}},
      {.request = 9,
       .fd_count = 0,
       .body = Declare{.dtype = DType::kBF16,
                       .op = Op::kAverage,
                       .root_rank = 2,
                       .priority = -5,
                       .element_count = 1u << 31,
                       .name = name,
                       .flags = kDeclareOnDevice,
                       .gives = Share::kOwn,
                       .gets = Share::kWhole,
                       .ranks = RankList(group)}},
      {.request = 9, .fd_count = 2, .body = declared},
      {.request = 0, .fd_count = 0, .body = Goodbye{}},
      {.request = 0,
       .fd_count = 0,
       .body = Lost{.status = RankStatus::kJobFailed, .text = "who died"}},
      {.request = 0, .fd_count = 0, .body = Doorbell{}},
      {.request = 0, .fd_count = 0, .body = Wake{}},
      {.request = 4,
       .fd_count = 0,
       .body = Export{.uuid = {1, 2}, .buffer_id = 1, .handle = {3, 4}}},
      {.request = 4,
       .fd_count = 0,
       .body = Exported{.status = RankStatus::kOk, .buffer = 1, .bytes = 2, .text = text}},
      {.request = 5, .fd_count = 0, .body = Unexport{.buffer = 1}},
      {.request = 5, .fd_count = 0, .body = Unexported{.status = RankStatus::kBusy, .text = text}},
      {.request = 6, .fd_count = 0, .body = Place{.tensor = 1, .buffer = 2, .signature = 3}},
      {.request = 6, .fd_count = 0, .body = Placed{.pushed = {1}, .taken = {2}, .text = text}},
      {.request = 7, .fd_count = 0, .body = Ask{.tensor = 1, .round = 1ull << 40}},
      {.request = 7, .fd_count = 0, .body = Told{.status = RankStatus::kBusy, .text = text}},
      {.request = 0, .fd_count = 1, .body = Peer{3, kPartsMax - 1, uint64_t{1} << 33}},
  };
}

TEST_CASE("Every message is read back from its bytes") {
  for (const Message& message : Samples()) {
    const std::vector<std::byte> bytes = Encode(message);
    CAPTURE(message.body.index());
    const ParseResult result = ParseMessage(bytes);
    REQUIRE(result.outcome == ParseOutcome::kMessage);
    CHECK(result.bytes_used == bytes.size());
    CHECK(result.message.request == message.request);
    CHECK(result.message.fd_count == message.fd_count);
    CHECK(result.message.body == message.body);
  }
}

TEST_CASE("The beginning of a message asks for more bytes, and never for too few") {
  for (const Message& message : Samples()) {
    const std::vector<std::byte> bytes = Encode(message);
    for (size_t cut = 0; cut < bytes.size(); cut += cut < 4096 ? 1 : 997) {
      const ParseResult result = ParseMessage(std::span(bytes).first(cut));
      REQUIRE(result.outcome == ParseOutcome::kNeedMore);
      REQUIRE(result.bytes_needed > cut);
      REQUIRE(result.bytes_needed <= bytes.size());
    }
  }
}

TEST_CASE("Fields that a newer minor version has appended are skipped") {
  std::vector<std::byte> bytes = Encode({.body = Hello{.pid = 1, .client_name = "x"}});
  uint32_t body_bytes;
  std::memcpy(&body_bytes, bytes.data() + 8, 4);
  body_bytes += 24;
  std::memcpy(bytes.data() + 8, &body_bytes, 4);
  bytes.resize(bytes.size() + 24, std::byte{0xee});
  const ParseResult result = ParseMessage(bytes);
  REQUIRE(result.outcome == ParseOutcome::kMessage);
  CHECK(result.bytes_used == bytes.size());
  CHECK(std::get<Hello>(result.message.body).client_name == "x");
}

// The last fields of Declare, for an empty group.
constexpr size_t kShareFieldsBytes = 8;

TEST_CASE("A Declare of an earlier version is an all_reduce or a broadcast of all ranks") {
  const Op op = GENERATE(Op::kSum, Op::kCopy);
  std::vector<std::byte> bytes =
      Encode({.body = Declare{.dtype = DType::kF32, .op = op, .element_count = 5, .name = "t"}});
  const auto body = static_cast<uint32_t>(bytes.size() - kMessageHeaderBytes - kShareFieldsBytes);
  std::memcpy(bytes.data() + 8, &body, 4);
  const ParseResult older = ParseMessage(std::span(bytes).first(kMessageHeaderBytes + body));
  REQUIRE(older.outcome == ParseOutcome::kMessage);
  const auto& declare = std::get<Declare>(older.message.body);
  CHECK(declare.collective() == Collective::Of(DType::kF32, op, 5));
  CHECK(declare.collective().name() == (op == Op::kSum ? "all_reduce" : "broadcast"));
  CHECK(declare.ranks.empty());
}

TEST_CASE("A group of ranks is found in ascending order, and fits into a message") {
  const std::vector<uint32_t> ranks = {2, 3, 7, 1000};
  std::vector<std::byte> unaligned(1 + ranks.size() * sizeof(uint32_t));
  std::memcpy(unaligned.data() + 1, ranks.data(), unaligned.size() - 1);
  const RankList list(unaligned.data() + 1, 4);
  CHECK(list == RankList(ranks));
  for (uint32_t i = 0; i < ranks.size(); ++i) CHECK(list.Find(ranks[i]) == i);
  for (const uint32_t none : {0u, 1u, 4u, 8u, 1001u}) CHECK(list.Find(none) == list.size());
  CHECK(RankList().Find(0) == 0);
  const std::vector<uint32_t> many(kGroupRanksMax + 1);
  std::array<std::byte, 2 * kEncodedBytesMax> out;
  CHECK(EncodeMessage({.body = Declare{.name = "t", .ranks = RankList(many)}}, out) == 0);
  // The count promises more ranks than there are, or than are allowed.
  std::vector<std::byte> bytes = Encode({.body = Declare{.name = "t", .ranks = RankList(ranks)}});
  for (const uint32_t count : {5u, kGroupRanksMax, kGroupRanksMax + 1, 0xffffffffu}) {
    std::memcpy(bytes.data() + bytes.size() - 20, &count, 4);
    CHECK(ParseMessage(bytes).outcome == ParseOutcome::kInvalid);
  }
}

// The last field of Declared.
constexpr size_t kArrivalsFieldBytes = 16;

TEST_CASE("An impossible part of an arena is refused") {
  std::vector<std::byte> bytes =
      Encode({.body = Declared{.tensor = 1, .summed_by = SummedBy::kRanks, .part = kPartsMax - 1}});
  REQUIRE(ParseMessage(bytes).outcome == ParseOutcome::kMessage);
  bytes[bytes.size() - kArrivalsFieldBytes - 1] = std::byte{1};
  // The part would be 1 << 24 or more.
  CHECK(ParseMessage(bytes).outcome == ParseOutcome::kInvalid);
}

TEST_CASE("A Declared of an earlier version announces no arrivals") {
  std::vector<std::byte> bytes = Encode({.body = Declared{.tensor = 1, .arrivals = {5, 64}}});
  REQUIRE(std::get<Declared>(ParseMessage(bytes).message.body).arrivals == Location{5, 64});
  const auto body = static_cast<uint32_t>(bytes.size() - kMessageHeaderBytes - kArrivalsFieldBytes);
  std::memcpy(bytes.data() + 8, &body, 4);
  const ParseResult older = ParseMessage(std::span(bytes).first(kMessageHeaderBytes + body));
  REQUIRE(older.outcome == ParseOutcome::kMessage);
  CHECK(std::get<Declared>(older.message.body).arrivals == Location{});
}

TEST_CASE("An unknown way of summing is refused") {
  for (const auto& [by, outcome] : {std::pair(SummedBy::kRanksInPlace, ParseOutcome::kMessage),
                                    std::pair(static_cast<SummedBy>(3), ParseOutcome::kInvalid)}) {
    CHECK(ParseMessage(Encode({.body = Declared{.summed_by = by}})).outcome == outcome);
  }
}

TEST_CASE("A body that ends before its fields, or holds too long a string, is invalid") {
  for (const Message& message : Samples()) {
    std::vector<std::byte> bytes = Encode(message);
    const uint32_t body = static_cast<uint32_t>(bytes.size() - kMessageHeaderBytes);
    const auto* declare = std::get_if<Declare>(&message.body);
    const size_t newer_bytes =
        declare != nullptr ? kShareFieldsBytes + declare->ranks.size() * sizeof(uint32_t)
        : std::holds_alternative<Declared>(message.body)       ? kArrivalsFieldBytes
        : std::holds_alternative<Hello>(message.body)          ? sizeof(Hello::flags)
        : std::holds_alternative<Place>(message.body)          ? sizeof(Place::signature)
        : std::holds_alternative<RankMembership>(message.body) ? sizeof(RankMembership::number)
        : std::holds_alternative<Welcome>(message.body)
            ? sizeof(Welcome::flags) + sizeof(Welcome::number)
            : 0;
    for (uint32_t shorter = 0; shorter < body; shorter += shorter < 4096 ? 1 : 997) {
      // The body is one of a minor version before 3, 5, 8 or 10.
      if (newer_bytes != 0 && shorter == body - newer_bytes) continue;
      std::memcpy(bytes.data() + 8, &shorter, 4);
      const ParseResult result = ParseMessage(bytes);
      REQUIRE(result.outcome == ParseOutcome::kInvalid);
    }
  }
  std::vector<std::byte> bytes = Encode({.body = Lost{.text = "x"}});
  for (const uint32_t length : {2u, 2049u, 0xffffffffu}) {
    std::memcpy(bytes.data() + kMessageHeaderBytes + 4, &length, 4);
    CHECK(ParseMessage(bytes).outcome == ParseOutcome::kInvalid);
  }
}

TEST_CASE("An invalid header is noticed at once") {
  std::vector<std::byte> bytes = Encode({.body = Goodbye{}});
  const auto with = [&](size_t offset, uint32_t value) {
    std::vector<std::byte> changed = bytes;
    std::memcpy(changed.data() + offset, &value, 4);
    return ParseMessage(changed).outcome;
  };
  CHECK(with(0, 0x47574c54) == ParseOutcome::kInvalid);
  CHECK(with(4, 10) == ParseOutcome::kInvalid);           // The type is wrong.
  CHECK(with(4, 5 | 9 << 16) == ParseOutcome::kInvalid);  // The number of descriptors is wrong.
  CHECK(with(8, kBodyBytesMax + 1) == ParseOutcome::kInvalid);
  CHECK(with(8, kBodyBytesMax) == ParseOutcome::kNeedMore);
  const std::array<std::byte, 4> other{};
  CHECK(ParseMessage(other).outcome == ParseOutcome::kInvalid);
}

TEST_CASE("Another major version's Hello and Welcome are read as far as they are the same") {
  std::vector<std::byte> bytes = Encode({.body = Hello{.major = 2, .minor = 5}});
  const uint32_t four = 4;
  std::memcpy(bytes.data() + 8, &four, 4);
  bytes.resize(kMessageHeaderBytes + 4);
  const ParseResult result = ParseMessage(bytes);
  REQUIRE(result.outcome == ParseOutcome::kMessage);
  CHECK(std::get<Hello>(result.message.body).major == 2);
}

TEST_CASE("A text that is too long is cut between characters, and a name is refused") {
  const std::string euros = [] {
    std::string text;
    for (size_t i = 0; i < kTextBytesMax; ++i) text += "\xe2\x82\xac";
    return text;
  }();
  const std::vector<std::byte> bytes = Encode({.body = Lost{.text = euros}});
  const ParseResult result = ParseMessage(bytes);
  REQUIRE(result.outcome == ParseOutcome::kMessage);
  CHECK(std::get<Lost>(result.message.body).text.size() == kTextBytesMax / 3 * 3);
  std::array<std::byte, kEncodedBytesMax> out;
  const std::string long_name(kTensorNameBytesMax + 1, 'n');
  CHECK(EncodeMessage({.body = Declare{.name = long_name}}, out) == 0);
  CHECK(EncodeMessage({.body = Wake{}}, std::span(out).first(15)) == 0);
  CHECK(EncodeMessage({.body = Lost{.text = "four"}}, std::span(out).first(27)) == 0);
  CHECK(EncodeMessage({.body = Lost{.text = "four"}}, std::span(out).first(28)) == 28);
}

}  // namespace
}  // namespace talweg::shm
