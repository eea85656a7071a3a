// SPDX-License-Identifier: Apache-2.0

// The data plane's frames of version 2.3, byte for byte. Frames of versions 2.0 to 2.2 can be read,
// and those of version 1 are refused.

#include <map>
#include <string>
#include <variant>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/wire/frames.h"
#include "tests/compat/golden.h"

namespace talweg::wire {
namespace {

constexpr JobId kJob{0x0102030405060708};
constexpr Epoch kEpoch{0x1112131415161718};
constexpr TensorKey kKey{0x2122232425262728};
constexpr Round kRound{0x31};
constexpr SliceIndex kSlice{0x41};

TEST_CASE("The frames between agents and aggregators have their released bytes") {
  Golden golden("frames_3.1.txt");
  const auto finish = [&golden](const char* name, FrameWriter& writer) {
    const std::vector<std::byte> bytes = writer.Take(0x51);
    golden.Add(name, bytes);
    const auto parsed = ParseFrame(bytes);
    REQUIRE(std::holds_alternative<Frame>(parsed));
    CHECK(std::get<Frame>(parsed).header.type == writer.type());
  };
  const auto add = [&](const char* name, FrameType type, const auto&... entries) {
    FrameWriter writer(type, kJob, kEpoch);
    REQUIRE((writer.Add(entries) && ...));
    finish(name, writer);
  };
  const std::vector<std::byte> bytes = {std::byte{0xa1}, std::byte{0xa2}, std::byte{0xa3},
                                        std::byte{0xa4}};
  add("Hello", FrameType::kHello,
      Hello{.member = {NodeRank(1), Incarnation(2)},
            .rank_count = 3,
            .view_digest = 4,
            .job_name = "job",
            .node_name = "node-a"});
  add("Welcome", FrameType::kWelcome,
      Welcome{.status = WelcomeStatus::kViewDiffers,
              .aggregator = Incarnation(5),
              .credit_bytes = 6,
              .text = "why not"});
  add("Declare", FrameType::kDeclare,
      Declare{.key = kKey,
              .name = "fc1.weight",
              .collective = {DType::kBF16, Op::kAverage, Share::kWhole, Share::kWhole, 9, true,
                             Encoding::kTwice, 0x51},
              .group = {{NodeRank(30), LocalRank(31)}, {NodeRank(32), LocalRank(33)}},
              .root_rank = 7,
              .by_rank = 8,
              .result = {RemoteRef{10, 11}, RemoteRef{12, 13}}},
      Declare{.key = kKey,
              .name = "gathered",
              .collective = {DType::kU8, Op::kCopy, Share::kOwn, Share::kRoot, 34},
              .root_rank = kNoRank,
              .by_rank = 35});
  add("Declared", FrameType::kDeclared,
      Declared{
          .key = kKey, .status = DeclaredStatus::kMismatch, .slot = {14, 15}, .text = "two sides"});
  add("Contribute", FrameType::kContribute,
      Contribute{.key = kKey,
                 .round = kRound,
                 .slice = kSlice,
                 .rank_count = 16,
                 .length_bytes = 0x71,
                 .travel_bytes = 4,
                 .mode = Mode::kSum,
                 .form = Form::kInline,
                 .wants_result = true,
                 .sum_epoch = Epoch(0),
                 .signature = 0x2122232425262728,
                 .bytes = bytes},
      Contribute{.key = kKey,
                 .round = kRound,
                 .slice = SliceIndex(0x42),
                 .rank_count = 17,
                 .mode = Mode::kCopy,
                 .form = Form::kEmpty,
                 .wants_result = false,
                 .sum_epoch = Epoch(18)},
      Contribute{.key = kKey,
                 .round = kRound,
                 .slice = SliceIndex(0x44),
                 .form = Form::kDisagreement,
                 .bytes = bytes,
                 .priority = 0x61626364});
  add("Result", FrameType::kResult,
      Result{.key = kKey,
             .round = kRound,
             .slice = kSlice,
             .rank_count = 19,
             .length_bytes = 0x72,
             .travel_bytes = 4,
             .form = Form::kInline,
             .sum_epoch = kEpoch,
             .bytes = bytes},
      Result{.key = kKey,
             .round = kRound,
             .slice = SliceIndex(0x43),
             .rank_count = 20,
             .length_bytes = 34,
             .travel_bytes = 36,
             .form = Form::kWritten,
             .sum_epoch = kEpoch},
      Result{.key = kKey,
             .round = kRound,
             .slice = SliceIndex(0x45),
             .form = Form::kDisagreement,
             .sum_epoch = kEpoch,
             .bytes = bytes});
  Report report{
      .key = kKey, .held = Round(21), .contributed = Round(22), .partial_epoch = Epoch(23)};
  report.held_epoch = Epoch(28);
  report.slices = {0x5152535455565758, 0x1};
  add("Report", FrameType::kReport, report);
  Decision decision{
      .key = kKey, .round = kRound, .verdict = Verdict::kFinish, .sum_epoch = Epoch(24)};
  decision.sources = {1, 2, 3};
  add("Decision", FrameType::kDecision, decision);
  add("Refused", FrameType::kRefused,
      Refused{.reason = RefusedReason::kWrongRound,
              .key = kKey,
              .round = kRound,
              .slice = kSlice,
              .text = "round 49"});
  add("Failed", FrameType::kFailed,
      Failed{
          .key = kKey, .round = kRound, .code = FailedCode::kAborted, .text = "the root is gone"});
  add("Waiting", FrameType::kWaiting,
      Waiting{.key = kKey,
              .round = kRound,
              .waited_ns = 25,
              .missing_nodes = {26, 27},
              .absent_ns = {0, 29},
              .left_nodes = {27}});
  for (const auto& [name, type] :
       {std::pair{"Credit", FrameType::kCredit}, std::pair{"Fence", FrameType::kFence},
        std::pair{"FenceAck", FrameType::kFenceAck}, std::pair{"Goodbye", FrameType::kGoodbye}}) {
    FrameWriter writer(type, kJob, kEpoch);
    finish(name, writer);
  }
  golden.Check();
}

TEST_CASE("Frames of version 3.0 are read") {
  for (const auto& [name, bytes] : Golden::Load("frames_3.0.txt")) {
    CAPTURE(name);
    const auto parsed = ParseFrame(bytes);
    REQUIRE(std::holds_alternative<Frame>(parsed));
    const auto* declares = std::get_if<std::vector<Declare>>(&std::get<Frame>(parsed).entries);
    if (declares != nullptr) CHECK(declares->front().collective.patience_ms == 0);
  }
}

TEST_CASE("Frames of versions 1 and 2 are refused, and the error names both versions") {
  for (const char* file : {"frames_1.0.txt", "frames_1.1.txt", "frames_2.0.txt", "frames_2.1.txt",
                           "frames_2.2.txt", "frames_2.3.txt"}) {
    const std::map<std::string, std::vector<std::byte>> golden = Golden::Load(file);
    CHECK(golden.size() == 15);
    for (const auto& [name, bytes] : golden) {
      CAPTURE(name);
      const auto parsed = ParseFrame(bytes);
      REQUIRE(std::holds_alternative<ParseError>(parsed));
      CHECK_THAT(std::get<ParseError>(parsed).text,
                 Catch::Contains("version " + std::string(file).substr(7, 3)) &&
                     Catch::Contains("this process 3.1"));
    }
  }
}

}  // namespace
}  // namespace talweg::wire
