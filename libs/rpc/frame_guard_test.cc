// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/frame_guard.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace talweg::rpc {
namespace {

using Verdict = FrameGuard::Verdict;
using Bytes = std::vector<uint8_t>;

constexpr uint8_t kData = 0, kHeaders = 1, kReset = 3, kPing = 6, kContinuation = 9;
constexpr uint8_t kEndStream = 1, kEndHeaders = 4;
constexpr int64_t kSecondNs = 1'000'000'000;

Bytes Preface() {
  const std::string text = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  return Bytes(text.begin(), text.end());
}

Bytes Frame(uint8_t type, uint8_t flags, uint32_t stream, size_t payload_bytes) {
  Bytes frame = {static_cast<uint8_t>(payload_bytes >> 16),
                 static_cast<uint8_t>(payload_bytes >> 8),
                 static_cast<uint8_t>(payload_bytes),
                 type,
                 flags,
                 static_cast<uint8_t>(stream >> 24),
                 static_cast<uint8_t>(stream >> 16),
                 static_cast<uint8_t>(stream >> 8),
                 static_cast<uint8_t>(stream)};
  frame.resize(frame.size() + payload_bytes, 0xFF);
  return frame;
}

// A client, and the guard in front of its server.
class Client {
 public:
  Client(const FrameLimits* limits, HalfBytes* of_all) : guard_(limits, of_all) {
    guard_.OnBytes(Preface(), 0);
  }
  Verdict Send(uint8_t type, uint8_t flags, uint32_t stream, size_t payload_bytes,
               int64_t now_ns = 0) {
    return guard_.OnBytes(Frame(type, flags, stream, payload_bytes), now_ns);
  }
  // Begins calls whose requests do not end, on new streams. Returns the first other verdict.
  Verdict BeginHalf(size_t count) {
    Verdict verdict = Verdict::kGood;
    for (size_t i = 0; i < count && verdict == Verdict::kGood; ++i, stream_ += 2) {
      verdict = Send(kHeaders, kEndHeaders, stream_, 100);
    }
    return verdict;
  }
  uint64_t half_bytes() const { return guard_.half_bytes(); }

 private:
  FrameGuard guard_;
  uint32_t stream_ = 1;
};

TEST_CASE("FrameGuard: whole requests pass, however their bytes are cut", "[rpc]") {
  const FrameLimits limits;
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{100'000'000}}) {
    HalfBytes of_all = 0;
    FrameGuard guard(&limits, &of_all);
    Bytes bytes = Preface();
    for (uint32_t stream = 1; stream < 4000; stream += 2) {
      for (const Bytes& frame :
           {Frame(kHeaders, kEndHeaders, stream, 300), Frame(kData, kEndStream, stream, 60)}) {
        bytes.insert(bytes.end(), frame.begin(), frame.end());
      }
    }
    for (size_t at = 0; at < bytes.size(); at += piece) {
      const size_t count = std::min(piece, bytes.size() - at);
      REQUIRE(guard.OnBytes({bytes.data() + at, count}, 0) == Verdict::kGood);
    }
    CHECK(guard.half_bytes() == 0);
    CHECK(of_all == 0);
  }
}

TEST_CASE("FrameGuard: the metadata of a call is bounded in bytes and in frames", "[rpc]") {
  const FrameLimits limits;
  HalfBytes of_all = 0;
  {
    Client client(&limits, &of_all);
    CHECK(client.Send(kHeaders, kEndHeaders | kEndStream, 1, 16 << 10) == Verdict::kGood);
    CHECK(client.Send(kHeaders, kEndHeaders | kEndStream, 3, (16 << 10) + 1) ==
          Verdict::kHeaderBlock);
  }
  {
    Client client(&limits, &of_all);
    CHECK(client.Send(kHeaders, 0, 1, 10'000) == Verdict::kGood);
    CHECK(client.Send(kContinuation, 0, 1, 10'000) == Verdict::kHeaderBlock);
  }
  {
    Client client(&limits, &of_all);
    CHECK(client.Send(kHeaders, kEndStream, 1, 10) == Verdict::kGood);
    for (int i = 1; i < 4; ++i) CHECK(client.Send(kContinuation, 0, 1, 10) == Verdict::kGood);
    CHECK(client.Send(kContinuation, kEndHeaders, 1, 0) == Verdict::kHeaderBlock);
  }
}

TEST_CASE("FrameGuard: requests that do not end are bounded in number and in bytes", "[rpc]") {
  const FrameLimits limits;
  HalfBytes of_all = 0;
  {
    Client client(&limits, &of_all);
    CHECK(client.BeginHalf(256) == Verdict::kGood);
    CHECK(client.BeginHalf(1) == Verdict::kHalfRequests);
  }
  CHECK(of_all == 0);
  {
    Client client(&limits, &of_all);
    CHECK(client.BeginHalf(100) == Verdict::kGood);
    const uint64_t kept = client.half_bytes();
    CHECK(client.Send(kData, 0, 1, 1 << 20) == Verdict::kGood);
    CHECK(client.half_bytes() == kept + (1 << 20));
    // A request that ends, and one that is reset, is no longer kept.
    CHECK(client.Send(kData, kEndStream, 1, 0) == Verdict::kGood);
    CHECK(client.Send(kReset, 0, 3, 4) == Verdict::kGood);
    CHECK(client.half_bytes() == kept / 100 * 98);
    CHECK(of_all == client.half_bytes());
    for (int i = 0; i < 13; ++i) CHECK(client.Send(kData, 0, 5, 1 << 20) == Verdict::kGood);
    CHECK(client.Send(kData, 0, 5, 1 << 20) == Verdict::kHalfRequests);
  }
}

TEST_CASE("FrameGuard: a request has to end in time, however busy its connection is", "[rpc]") {
  const FrameLimits limits;
  HalfBytes of_all = 0;
  Client slow(&limits, &of_all);
  Client good(&limits, &of_all);
  // Each connection lets its first request wait, and goes on with others. The good one then ends
  // it.
  for (int64_t second = 0; second <= 60; ++second) {
    const int64_t now_ns = second * kSecondNs;
    const auto stream = static_cast<uint32_t>(2 * second + 1);
    for (Client* client : {&slow, &good}) {
      const uint8_t flags = second == 0 ? kEndHeaders : kEndHeaders | kEndStream;
      CHECK(client->Send(kHeaders, flags, stream, 100, now_ns) == Verdict::kGood);
      CHECK(client->Send(kData, 0, 1, 1, now_ns) == Verdict::kGood);
    }
  }
  CHECK(good.Send(kData, kEndStream, 1, 1, 60 * kSecondNs) == Verdict::kGood);
  // An answer to the server's PING is enough.
  CHECK(good.Send(kPing, 1, 0, 8, 62 * kSecondNs) == Verdict::kGood);
  CHECK(slow.Send(kPing, 1, 0, 8, 62 * kSecondNs) == Verdict::kSlowRequest);
}

TEST_CASE("FrameGuard: while others keep much, each connection may keep little", "[rpc]") {
  const FrameLimits limits;
  HalfBytes of_all = 0;
  Client client(&limits, &of_all);
  CHECK(client.BeginHalf(10) == Verdict::kGood);
  {
    std::vector<std::unique_ptr<Client>> others;
    for (int i = 0; i < 4; ++i) {
      others.push_back(std::make_unique<Client>(&limits, &of_all));
      others.back()->Send(kHeaders, kEndHeaders, 1, 100);
      others.back()->Send(kData, 0, 1, 8 << 20);
    }
    // A connection that sends whole requests goes on.
    Client beside(&limits, &of_all);
    for (uint32_t stream = 1; stream < 100; stream += 2) {
      CHECK(beside.Send(kHeaders, kEndHeaders, stream, 300) == Verdict::kGood);
      CHECK(beside.Send(kData, 0, stream, 32 << 10) == Verdict::kGood);
      CHECK(beside.Send(kData, kEndStream, stream, 32 << 10) == Verdict::kGood);
    }
    CHECK(client.BeginHalf(1) == Verdict::kHalfRequests);
  }
  CHECK(of_all == client.half_bytes());
}

TEST_CASE("FrameGuard: resets and empty frames are bounded, at once and over time", "[rpc]") {
  const FrameLimits limits;
  HalfBytes of_all = 0;
  {
    Client client(&limits, &of_all);
    for (uint32_t i = 0; i < 256; ++i) CHECK(client.Send(kReset, 0, 1, 4) == Verdict::kGood);
    for (uint32_t i = 0; i < 128; ++i) {
      CHECK(client.Send(kReset, 0, 1, 4, kSecondNs) == Verdict::kGood);
    }
    CHECK(client.Send(kReset, 0, 1, 4, kSecondNs) == Verdict::kResets);
  }
  for (const uint8_t type : {kPing, kData}) {
    Client client(&limits, &of_all);
    for (uint32_t i = 0; i < limits.control_frames_max; ++i) {
      REQUIRE(client.Send(type, 0, 1, 0) == Verdict::kGood);
    }
    CHECK(client.Send(type, 0, 1, 0, kSecondNs / 2) == Verdict::kGood);
    for (uint32_t i = 1; i < limits.control_frames_per_second / 2; ++i) {
      REQUIRE(client.Send(type, 0, 1, 0, kSecondNs / 2) == Verdict::kGood);
    }
    CHECK(client.Send(type, 0, 1, 0, kSecondNs / 2) == Verdict::kControlFrames);
  }
}

}  // namespace
}  // namespace talweg::rpc
