// SPDX-License-Identifier: Apache-2.0

// Shared memory and socket messages of this version, byte for byte. Messages of earlier versions
// can still be read.

#include <array>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/shm/layout/control.h"
#include "libs/shm/layout/messages.h"
#include "tests/compat/golden.h"

namespace talweg::shm {
namespace {

TEST_CASE("The control segment has its released layout") {
  constexpr ControlShape kShape{4, 3};
  std::vector<std::byte> memory(kShape.total_bytes() + 64);
  // A mapping would be aligned like this.
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  std::byte* base = memory.data() + (64 - address % 64) % 64;
  const ControlView view(base, kShape);
  ControlHeader& header = view.header();
  header.magic = kControlMagic;
  header.major = kLayoutMajor;
  header.minor = kLayoutMinor;
  header.total_bytes = kShape.total_bytes();
  header.ring_capacity = kShape.ring_capacity;
  header.tensors_max = kShape.tensors_max;
  header.incarnation = 0x1122334455667788;
  header.rank = 11;
  header.size = 12;
  header.local_rank = 13;
  header.local_size = 14;
  header.node_rank = 15;
  header.node_count = 16;
  header.ring_offset = kShape.ring_offset();
  header.states_offset = kShape.states_offset();
  header.texts_offset = kShape.texts_offset();
  header.text_slots = kTextSlots;
  header.silence_ms = 17;
  view.agent_line().state = static_cast<uint32_t>(JobState::kFailed);
  view.agent_line().failure_status = static_cast<uint32_t>(RankStatus::kJobFailed);
  view.agent_line().sleep_sequence = 0x21;
  view.agent_line().beats = 0x22;
  view.agent_line().sleeps_until_awaited = 0x23;
  view.agent_line().stop_at = 0x24;
  view.agent_line().epoch = 0x25;
  view.rank_line().submitted = 0x31;
  view.rank_line().waiters = 0x32;
  view.rank_line().push_waiters = 0x33;
  view.rank_line().wakes_seen = 0x34;
  view.rank_line().awaited = 0x35;
  view.rank_line().awaited_bytes = 0x36;
  view.rank_line().steps_ended = 0x37;
  view.consumed_line().consumed = 0x41;
  std::strcpy(view.failure_text().text, "who died");
  view.ring_entry(6) = {
      .tensor = 0x51, .priority = -2, .round = 0x52, .flags = 0x53, .device_offset = 0x54};
  TensorState& state = view.tensor_state(2);
  state.completed_round = 0x61;
  state.status = static_cast<uint32_t>(RankStatus::kAborted);
  state.goes_on = 0x65;
  state.ranks_summed = 0x62;
  state.sum_epoch = 0x63;
  state.text_ticket = 0x64;
  state.good_rounds[1] = GoodRound{.round = 0x66, .ranks_summed = 0x67}.word();
  TextSlot& slot = view.text_slot(kTextSlots + 1);
  slot.ticket = 0x71;
  slot.words[0] = 0x7172737475767778;
  slot.words[kTextSlotWords - 1] = 0x72;

  Golden golden("control_segment_1.5.txt");
  golden.Add("control", {base, kShape.total_bytes()});
  golden.Check();
}

TEST_CASE("The messages on a rank's socket have their released bytes") {
  constexpr std::array<uint32_t, 3> kGroup = {0x2005, 0x2006, 0x2007};
  Golden golden("rank_messages_1.12.txt");
  const auto add = [&golden](const char* name, const Message& message) {
    std::array<std::byte, kEncodedBytesMax> bytes;
    const size_t count = EncodeMessage(message, bytes);
    REQUIRE(count > 0);
    golden.Add(name, std::span(bytes).first(count));
    // This version also reads what it has written.
    const ParseResult result = ParseMessage(std::span(bytes).first(count));
    REQUIRE(result.outcome == ParseOutcome::kMessage);
    CHECK(result.message.body == message.body);
  };
  add("Hello", {.body = Hello{.pid = 0x1001,
                              .wanted_local_rank = 0x1002,
                              .client_name = "train.py",
                              .flags = 0x1003}});
  add("Welcome", {.fd_count = 1,
                  .body = Welcome{.status = RankStatus::kRankTaken,
                                  .text = "taken",
                                  .rank = 1,
                                  .size = 2,
                                  .local_rank = 3,
                                  .local_size = 4,
                                  .node_rank = 5,
                                  .node_count = 6,
                                  .ring_capacity = 7,
                                  .tensors_max = 8,
                                  .control_bytes = 9,
                                  .job_name = "job",
                                  .flags = 10,
                                  .number = 11}});
  add("Declare", {.request = 0x2001,
                  .body = Declare{.dtype = DType::kBF16,
                                  .op = Op::kCopy,
                                  .root_rank = 0x2002,
                                  .priority = -3,
                                  .element_count = 0x2003,
                                  .name = "fc1.weight",
                                  .flags = 0x2004,
                                  .gives = Share::kOwn,
                                  .gets = Share::kRoot,
                                  .encoding = Encoding::kTwice,
                                  .patience_ms = 0x2008,
                                  .ranks = RankList(kGroup)}});
  Declared declared{.status = RankStatus::kMismatch,
                    .tensor = 0x3001,
                    .tensor_bytes = 0x3002,
                    .completed_round = 0x3003,
                    .contribution = {0x3004, 0x3005},
                    .result = {{0x3006, 0x3007}, {0x3008, 0x3009}},
                    .text = "two sides",
                    .segment_count = 2,
                    .summed_by = SummedBy::kRanks,
                    .part = 0x2a,
                    .arrivals = {0x3006, 0x300c}};
  declared.segments[0] = {0x3004, SegmentKind::kContribution, 0x300a};
  declared.segments[1] = {0x3006, SegmentKind::kResult, 0x300b};
  add("Declared", {.request = 0x2001, .fd_count = 2, .body = declared});
  add("Goodbye", {.body = Goodbye{}});
  add("Lost", {.body = Lost{.status = RankStatus::kJobFailed, .text = "node 1"}});
  add("Doorbell", {.body = Doorbell{}});
  add("Wake", {.body = Wake{}});
  add("Peer", {.fd_count = 1, .body = Peer{0x4001, 0x2b, 0x4002}});
  GpuHandleBytes handle = {};
  handle.front() = 0x51;
  handle.back() = 0x52;
  add("Export",
      {.request = 0x5001, .body = Export{.uuid = {0x53}, .buffer_id = 0x5002, .handle = handle}});
  add("Exported", {.request = 0x5001,
                   .body = Exported{.status = RankStatus::kUnsupported,
                                    .buffer = 0x5003,
                                    .bytes = 0x5004,
                                    .text = "no GPU"}});
  add("Unexport", {.request = 0x5005, .body = Unexport{.buffer = 0x5003}});
  add("Unexported",
      {.request = 0x5005, .body = Unexported{.status = RankStatus::kBusy, .text = "in use"}});
  add("Place",
      {.request = 0x5006, .body = Place{.tensor = 0x5007, .buffer = 0x5003, .signature = 0x5008}});
  add("Placed", {.request = 0x5006,
                 .body = Placed{.status = RankStatus::kOutOfMemory,
                                .pushed = handle,
                                .taken = handle,
                                .text = "no event"}});
  add("Boundary", {.request = 0x6001,
                   .body = Boundary{.question = BoundaryQuestion::kFollow,
                                    .steps_ended = 0x6002,
                                    .epoch = 0x6003,
                                    .first_member = 0x6004}});
  constexpr std::array<MembershipMember, 2> kMembers = {
      {{0x6011, 0x6012, 0x6017, 0x6013}, {0x6014, 0x6015, 0x6018, 0x6016}}};
  add("Membership", {.request = 0x6001,
                     .body = RankMembership{.status = RankStatus::kInvalidArgument,
                                            .flags = kMembershipChanges,
                                            .epoch = 0x6005,
                                            .steps = 0x6006,
                                            .steps_base = 0x6007,
                                            .rank = 0x6008,
                                            .size = 0x6009,
                                            .member_count = 0x600a,
                                            .first_member = 0x600b,
                                            .members = {kMembers.data(), kMembers.size()},
                                            .text = "no view",
                                            .number = 0x600c}});
  add("Ask", {.request = 0x7001, .body = Ask{.tensor = 0x7002, .round = 0x7003}});
  add("Told", {.request = 0x7001, .body = Told{.status = RankStatus::kBusy, .text = "rank 3"}});
  golden.Check();
}

TEST_CASE("Messages of earlier versions can be read") {
  const uint16_t minor =
      GENERATE(uint16_t{0}, uint16_t{1}, uint16_t{2}, uint16_t{3}, uint16_t{4}, uint16_t{5},
               uint16_t{6}, uint16_t{7}, uint16_t{8}, uint16_t{9}, uint16_t{10}, uint16_t{11});
  const std::map<std::string, std::vector<std::byte>> golden =
      Golden::Load("rank_messages_1." + std::to_string(minor) + ".txt");
  CHECK(golden.size() == (minor < 6 ? 15 : minor < 9 ? 17 : 19));
  for (const auto& [name, bytes] : golden) {
    CAPTURE(name);
    const ParseResult result = ParseMessage(bytes);
    REQUIRE(result.outcome == ParseOutcome::kMessage);
    if (const auto* hello = std::get_if<Hello>(&result.message.body)) CHECK(hello->minor == minor);
    if (const auto* welcome = std::get_if<Welcome>(&result.message.body)) {
      CHECK(welcome->minor == minor);
      if (minor < 8) CHECK((welcome->flags == 0 && welcome->number == welcome->rank));
    }
    // Standbys and their numbers came with minor version 8.
    if (const auto* view = std::get_if<RankMembership>(&result.message.body); view && minor < 8) {
      CHECK(view->number == view->rank);
      CHECK(view->members[0].flags == 0);
    }
    if (const auto* place = std::get_if<Place>(&result.message.body); place && minor < 10) {
      CHECK(place->signature == 0);
    }
    if (const auto* declare = std::get_if<Declare>(&result.message.body)) {
      CHECK(declare->collective().name() == std::string(minor < 5 ? "broadcast" : "gather"));
      CHECK((minor >= 5 || declare->ranks.empty()));
      CHECK(declare->encoding == (minor < 11 ? Encoding::kPlain : Encoding::kTwice));
      CHECK(declare->patience_ms == 0);
    }
  }
}

}  // namespace
}  // namespace talweg::shm
