// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/outbox.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace talweg::aggregator {
namespace {

struct Posted {
  std::vector<wire::Header> headers;

  Outbox::PostFrame Poster() {
    return [this](std::vector<std::byte> bytes) {
      const auto parsed = wire::ParseFrame(bytes);
      REQUIRE(std::holds_alternative<wire::Frame>(parsed));
      headers.push_back(std::get<wire::Frame>(parsed).header);
    };
  }
};

TEST_CASE("Outbox: entries of one type and epoch share a frame, in order", "[aggregator]") {
  Posted posted;
  Outbox outbox(JobId{7}, posted.Poster());
  for (int i = 0; i < 5; ++i) outbox.Add(wire::FrameType::kResult, Epoch{1}, wire::Result{});
  outbox.Add(wire::FrameType::kFailed, Epoch{1}, wire::Failed{});
  outbox.Add(wire::FrameType::kResult, Epoch{1}, wire::Result{});
  outbox.Add(wire::FrameType::kResult, Epoch{2}, wire::Result{});
  outbox.Flush(Epoch{2}, 0);
  REQUIRE(posted.headers.size() == 4);
  CHECK(posted.headers[0].type == wire::FrameType::kResult);
  CHECK(posted.headers[0].entry_count == 5);
  CHECK(posted.headers[0].job == JobId{7});
  CHECK(posted.headers[1].type == wire::FrameType::kFailed);
  CHECK(posted.headers[2].epoch == Epoch{1});
  CHECK(posted.headers[3].epoch == Epoch{2});
  outbox.Flush(Epoch{2}, 0);
  CHECK(posted.headers.size() == 4);
}

TEST_CASE("Outbox: a full frame leaves, and the next one begins", "[aggregator]") {
  Posted posted;
  Outbox outbox(JobId{7}, posted.Poster());
  const std::vector<std::byte> bytes(wire::kInlineBytesMax);
  for (int i = 0; i < 20; ++i) {
    outbox.Add(wire::FrameType::kResult, Epoch{1},
               wire::Result{.form = wire::Form::kInline, .bytes = bytes});
  }
  outbox.Flush(Epoch{1}, 0);
  uint32_t entries = 0;
  for (const wire::Header& header : posted.headers) entries += header.entry_count;
  CHECK(entries == 20);
  CHECK(posted.headers.size() == 3);
}

TEST_CASE("Outbox: credit travels on the next frame, or alone, and is sent once", "[aggregator]") {
  Posted posted;
  Outbox outbox(JobId{7}, posted.Poster());
  outbox.AddCredit(10);
  outbox.AddCredit(5);
  outbox.Add(wire::FrameType::kResult, Epoch{1}, wire::Result{});
  outbox.Flush(Epoch{1}, 0);
  outbox.AddCredit(3);
  outbox.Flush(Epoch{1}, 0);
  outbox.Flush(Epoch{1}, 0);
  REQUIRE(posted.headers.size() == 2);
  CHECK(posted.headers[0].credit_bytes == 15);
  CHECK(posted.headers[1].type == wire::FrameType::kCredit);
  CHECK(posted.headers[1].credit_bytes == 3);
}

TEST_CASE("Outbox: a little credit waits for a frame to travel on", "[aggregator]") {
  Posted posted;
  Outbox outbox(JobId{7}, posted.Poster());
  outbox.AddCredit(100);
  outbox.Flush(Epoch{1}, 100);
  CHECK(posted.headers.empty());
  CHECK(outbox.credit_bytes() == 100);
  outbox.Add(wire::FrameType::kResult, Epoch{1}, wire::Result{});
  outbox.Flush(Epoch{1}, 100);
  REQUIRE(posted.headers.size() == 1);
  CHECK(posted.headers[0].credit_bytes == 100);
  outbox.AddCredit(101);
  outbox.Flush(Epoch{1}, 100);
  REQUIRE(posted.headers.size() == 2);
  CHECK(posted.headers[1].credit_bytes == 101);
}

TEST_CASE("Outbox: nothing is in flight after a FenceAck, so credit before it is forgotten",
          "[aggregator]") {
  Posted posted;
  Outbox outbox(JobId{7}, posted.Poster());
  outbox.AddCredit(10);
  outbox.AddFenceAck(Epoch{2});
  outbox.AddCredit(10);
  outbox.AddWelcome(Epoch{2}, wire::Welcome{});
  outbox.Flush(Epoch{2}, 0);
  REQUIRE(posted.headers.size() == 2);
  CHECK(posted.headers[0].type == wire::FrameType::kFenceAck);
  CHECK(posted.headers[0].credit_bytes == 0);
  CHECK(posted.headers[1].type == wire::FrameType::kWelcome);
  CHECK(posted.headers[1].credit_bytes == 0);
}

}  // namespace
}  // namespace talweg::aggregator
