// SPDX-License-Identifier: Apache-2.0
// Conformance of transports, first part: what is sent arrives whole and in order.
#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include <catch2/catch.hpp>

#include "libs/base/bytes.h"
#include "libs/base/random.h"
#include "libs/transport/testing/harness.h"

namespace talweg::transport {
namespace {

TEST_CASE("Transport: both sides of a connection are told", "[transport]") {
  const auto harness = NewHarness();
  Pair pair(*harness);
  REQUIRE(pair.connected);
  CHECK(pair.client.sink.connected == std::vector{pair.to_server});
  CHECK(pair.client.sink.accepted.empty());
  CHECK(pair.server.sink.connected.empty());
}

TEST_CASE("Transport: frames of all sizes arrive in order", "[transport]") {
  const auto harness = NewHarness();
  Pair pair(*harness);
  REQUIRE(pair.connected);
  Random random(1);
  const std::vector<size_t> edges = {8, 9, 4096, wire::kFrameBytesMax - 1, wire::kFrameBytesMax};
  std::vector<size_t> sizes = edges;
  while (sizes.size() < 500) {
    sizes.push_back(8 + random.Below(random.OneIn(8) ? wire::kFrameBytesMax - 8 : 600));
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    REQUIRE(pair.client.transport->PostFrame(pair.to_server, FrameOf(i, sizes[i])) ==
            PostResult::kPosted);
  }
  REQUIRE(PollUntil({&pair.client, &pair.server},
                    [&] { return pair.server.sink.frames.size() == sizes.size(); }));
  for (size_t i = 0; i < sizes.size(); ++i) {
    CHECK(pair.server.sink.frames[i].first == pair.to_client);
    REQUIRE(pair.server.sink.frames[i].second == FrameOf(i, sizes[i]));
  }
  REQUIRE(PollUntil({&pair.client, &pair.server},
                    [&] { return pair.client.transport->PendingBytes(pair.to_server) == 0; }));
}

TEST_CASE("Transport: a frame of one byte arrives", "[transport]") {
  const auto harness = NewHarness();
  Pair pair(*harness);
  REQUIRE(pair.connected);
  pair.client.transport->PostFrame(pair.to_server, {std::byte{42}});
  REQUIRE(
      PollUntil({&pair.client, &pair.server}, [&] { return pair.server.sink.frames.size() == 1; }));
  CHECK(pair.server.sink.frames[0].second == std::vector{std::byte{42}});
}

TEST_CASE("Transport: frames that are posted before the connection is up are sent after",
          "[transport]") {
  const auto harness = NewHarness();
  Endpoint client{harness->NewTransport()};
  Endpoint server{harness->NewTransport()};
  const auto address = server.transport->Listen({});
  REQUIRE(address.ok());
  const auto connection = client.transport->Connect(*address);
  REQUIRE(connection.ok());
  REQUIRE(client.transport->PostFrame(*connection, FrameOf(7)) == PostResult::kPosted);
  REQUIRE(client.transport->PostFrame(*connection, FrameOf(8)) == PostResult::kPosted);
  REQUIRE(PollUntil({&client, &server}, [&] { return server.sink.frames.size() == 2; }));
  CHECK(NumberOf(server.sink.frames[0].second) == 7);
  CHECK(NumberOf(server.sink.frames[1].second) == 8);
}

TEST_CASE("Transport: a write has landed when the frame after it is received", "[transport]") {
  const auto harness = NewHarness();
  const size_t size = GENERATE(size_t{0}, size_t{1}, size_t{13}, 64 * kKiB, kMiB + 3, 64 * kMiB);
  CAPTURE(size);
  // The slice begins and ends inside its region: its neighbours keep their bytes.
  constexpr size_t kMargin = 5;
  std::vector<std::byte> source = Pattern(1, size + 2 * kMargin);
  std::vector<std::byte> target(size + 2 * kMargin, std::byte{0xee});
  Pair pair(*harness);
  REQUIRE(pair.connected);
  const auto from = pair.client.transport->Register(source);
  const auto to = pair.server.transport->Register(target);
  REQUIRE(from.ok());
  REQUIRE(to.ok());
  bool landed = false;
  pair.server.sink.on_frame = [&](ConnectionId, std::span<const std::byte>) {
    landed = std::equal(source.begin() + kMargin, source.end() - kMargin, target.begin() + kMargin);
  };
  REQUIRE(pair.client.transport->PostWrite(pair.to_server, from->Slice(kMargin, size),
                                           to->Ref(kMargin), 77) == PostResult::kPosted);
  REQUIRE(pair.client.transport->PostFrame(pair.to_server, FrameOf(1)) == PostResult::kPosted);
  REQUIRE(PollUntil({&pair.client, &pair.server}, [&] {
    return !pair.server.sink.frames.empty() && !pair.client.sink.writes_done.empty();
  }));
  CHECK(landed);
  CHECK(pair.client.sink.writes_done.size() == 1);
  CHECK(pair.client.sink.writes_done[0].context == 77);
  for (size_t i = 0; i < kMargin; ++i) {
    CHECK(target[i] == std::byte{0xee});
    CHECK(target[target.size() - 1 - i] == std::byte{0xee});
  }
}

TEST_CASE("Transport: writes that follow each other land each in its place", "[transport]") {
  const auto harness = NewHarness();
  // Slices have neighbours on both sides, on one side, or on none. There are more of them than any
  // provider takes at once.
  constexpr size_t kCount = 40;
  constexpr size_t kLength = 3'001;
  const size_t gap_here = GENERATE(size_t{0}, size_t{7});
  const size_t gap_there = GENERATE(size_t{0}, size_t{11});
  CAPTURE(gap_here, gap_there);
  std::vector<std::byte> source = Pattern(1, kCount * (kLength + gap_here));
  std::vector<std::byte> target(kCount * (kLength + gap_there), std::byte{0xee});
  std::vector<std::byte> expected = target;
  Pair pair(*harness);
  REQUIRE(pair.connected);
  const auto from = pair.client.transport->Register(source);
  const auto to = pair.server.transport->Register(target);
  REQUIRE(from.ok());
  REQUIRE(to.ok());
  for (size_t i = 0; i < kCount; ++i) {
    const size_t here = i * (kLength + gap_here);
    const size_t there = i * (kLength + gap_there);
    std::copy_n(source.begin() + static_cast<ptrdiff_t>(here), kLength,
                expected.begin() + static_cast<ptrdiff_t>(there));
    REQUIRE(pair.client.transport->PostWrite(pair.to_server, from->Slice(here, kLength),
                                             to->Ref(there), i) == PostResult::kPosted);
  }
  bool landed = false;
  pair.server.sink.on_frame = [&](ConnectionId, std::span<const std::byte>) {
    landed = target == expected;
  };
  REQUIRE(pair.client.transport->PostFrame(pair.to_server, FrameOf(1)) == PostResult::kPosted);
  REQUIRE(PollUntil({&pair.client, &pair.server}, [&] {
    return !pair.server.sink.frames.empty() && pair.client.sink.writes_done.size() == kCount;
  }));
  CHECK(landed);
  CHECK(pair.client.transport->PendingBytes(pair.to_server) == 0);
  std::vector<bool> seen(kCount, false);
  for (const auto& done : pair.client.sink.writes_done) seen[done.context] = true;
  CHECK(std::count(seen.begin(), seen.end(), true) == kCount);
}

TEST_CASE("Transport: many writes and frames go in both directions at once", "[transport]") {
  const auto harness = NewHarness();
  Pair pair(*harness);
  REQUIRE(pair.connected);
  constexpr size_t kSlice = 512 * kKiB;
  // Each side keeps kWindow rounds in flight, and posts another when it gets a frame. Frame n says
  // that round n - kWindow has been received. So a slot is free after two windows.
  constexpr size_t kWindow = 4;
  constexpr size_t kSlots = 2 * kWindow;
  constexpr uint64_t kRounds = 48;

  struct Side {
    Endpoint* endpoint;
    ConnectionId connection;
    std::vector<std::byte> source = Pattern(3, kSlice* kSlots);
    std::vector<std::byte> target = std::vector<std::byte>(kSlice * kSlots);
    Region from, to;
    uint64_t posted = 0;
    uint64_t right = 0;
    std::multiset<uint64_t> done;
  };
  Side client{&pair.client, pair.to_server};
  Side server{&pair.server, pair.to_client};
  for (Side* side : {&client, &server}) {
    side->from = *side->endpoint->transport->Register(side->source);
    side->to = *side->endpoint->transport->Register(side->target);
  }
  const auto post = [&](Side& side, Side& other) {
    const size_t slot = side.posted % kSlots;
    side.source[slot * kSlice] = std::byte(side.posted);
    side.source[(slot + 1) * kSlice - 1] = std::byte(side.posted);
    Transport& transport = *side.endpoint->transport;
    REQUIRE(transport.PostWrite(side.connection, side.from.Slice(slot * kSlice, kSlice),
                                other.to.Ref(slot * kSlice), side.posted) == PostResult::kPosted);
    REQUIRE(transport.PostFrame(side.connection, FrameOf(side.posted)) == PostResult::kPosted);
    ++side.posted;
  };
  const auto attach = [&](Side& side, Side& other) {
    side.endpoint->sink.on_frame = [&](ConnectionId, std::span<const std::byte> frame) {
      const uint64_t round = NumberOf(frame);
      const size_t slot = round % kSlots;
      const std::span<const std::byte> bytes =
          std::span(side.target).subspan(slot * kSlice, kSlice);
      const bool edges = bytes.front() == std::byte(round) && bytes.back() == std::byte(round);
      const bool middle =
          std::equal(bytes.begin() + 1, bytes.end() - 1, other.source.begin() + slot * kSlice + 1);
      if (round == side.right && edges && middle) ++side.right;
      if (other.posted < kRounds) post(other, side);
    };
    side.endpoint->sink.on_write_done = [&](ConnectionId, uint64_t context) {
      side.done.insert(context);
    };
  };
  attach(client, server);
  attach(server, client);
  for (size_t i = 0; i < kWindow; ++i) {
    post(client, server);
    post(server, client);
  }
  REQUIRE(PollUntil({&pair.client, &pair.server}, [&] {
    return client.endpoint->sink.frames.size() == kRounds &&
           server.endpoint->sink.frames.size() == kRounds && client.done.size() == kRounds &&
           server.done.size() == kRounds;
  }));
  for (const Side* side : {&client, &server}) {
    CHECK(side->right == kRounds);
    CHECK(std::set<uint64_t>(side->done.begin(), side->done.end()).size() == kRounds);
  }
}

TEST_CASE("Transport: a transport waits for a peer that does not poll, and nothing is lost",
          "[transport]") {
  const auto harness = NewHarness();
  Pair pair(*harness);
  REQUIRE(pair.connected);
  std::vector<std::byte> source = Pattern(5, kMiB);
  std::vector<std::byte> target(64 * kMiB);
  const auto from = pair.client.transport->Register(source);
  const auto to = pair.server.transport->Register(target);
  REQUIRE(from.ok());
  REQUIRE(to.ok());
  constexpr uint64_t kWrites = 64;
  constexpr uint64_t kFrames = 1000;
  for (uint64_t i = 0; i < kFrames; ++i) {
    if (i < kWrites) {
      pair.client.transport->PostWrite(pair.to_server, from->Slice(0, kMiB), to->Ref(i * kMiB), i);
    }
    pair.client.transport->PostFrame(pair.to_server, FrameOf(i, 8000));
  }
  PollUntilIdle({&pair.client});
  CHECK(pair.client.transport->PendingBytes(pair.to_server) > 0);
  CHECK(pair.server.sink.frames.empty());

  REQUIRE(PollUntil({&pair.client, &pair.server},
                    [&] { return pair.server.sink.frames.size() == kFrames; }));
  for (uint64_t i = 0; i < kFrames; ++i) {
    REQUIRE(NumberOf(pair.server.sink.frames[i].second) == i);
  }
  for (uint64_t i = 0; i < kWrites; ++i) {
    REQUIRE(memcmp(target.data() + i * kMiB, source.data(), kMiB) == 0);
  }
}

TEST_CASE("Transport: a poll delivers no more events than asked for", "[transport]") {
  const auto harness = NewHarness();
  Pair pair(*harness);
  REQUIRE(pair.connected);
  for (uint64_t i = 0; i < 50; ++i) pair.client.transport->PostFrame(pair.to_server, FrameOf(i));
  size_t most = 0;
  REQUIRE(PollUntil({&pair.client}, [&] {
    const size_t before = pair.server.sink.frames.size();
    pair.server.Poll(/*events_max=*/3);
    most = std::max(most, pair.server.sink.frames.size() - before);
    return pair.server.sink.frames.size() == 50;
  }));
  CHECK(most <= 3);
}

TEST_CASE("Transport: 64 connections do not mix", "[transport]") {
  const auto harness = NewHarness();
  Endpoint client{harness->NewTransport()};
  Endpoint server{harness->NewTransport()};
  const auto address = server.transport->Listen({});
  REQUIRE(address.ok());
  constexpr size_t kConnections = 64;
  constexpr size_t kSlice = 4096;
  std::vector<std::byte> source = Pattern(9, kSlice * kConnections);
  std::vector<std::byte> target(kSlice * kConnections);
  const auto from = client.transport->Register(source);
  const auto to = server.transport->Register(target);
  REQUIRE(from.ok());
  REQUIRE(to.ok());
  std::map<ConnectionId, size_t> index;
  std::vector<ConnectionId> connections;
  for (size_t i = 0; i < kConnections; ++i) {
    const auto connection = client.transport->Connect(*address);
    REQUIRE(connection.ok());
    connections.push_back(*connection);
    index[*connection] = i;
    client.transport->PostWrite(*connection, from->Slice(i * kSlice, kSlice), to->Ref(i * kSlice),
                                i);
    client.transport->PostFrame(*connection, FrameOf(i));
  }
  // The server answers each frame on the connection that it came from.
  server.sink.on_frame = [&](ConnectionId connection, std::span<const std::byte> frame) {
    server.transport->PostFrame(connection, FrameOf(NumberOf(frame) + 1000));
  };
  REQUIRE(PollUntil({&client, &server}, [&] { return client.sink.frames.size() == kConnections; }));
  for (const auto& [connection, frame] : client.sink.frames) {
    CHECK(NumberOf(frame) == index[connection] + 1000);
  }
  CHECK(target == source);
  for (const auto& [connection, context] : client.sink.writes_done) {
    CHECK(index[connection] == context);
  }
}

}  // namespace
}  // namespace talweg::transport
