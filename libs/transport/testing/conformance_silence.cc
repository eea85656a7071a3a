// SPDX-License-Identifier: Apache-2.0
// Conformance of transports, fourth part: peers that are stopped and send nothing.
#include <unistd.h>

#include <string>

#include <catch2/catch.hpp>

#include "libs/base/check.h"
#include "libs/runtime/clock.h"
#include "libs/runtime/manual_clock.h"
#include "libs/transport/testing/harness.h"

namespace talweg::transport {
namespace {

constexpr Hearts kQuickHearts = {.heartbeat_ns = 10'000'000, .silence_ns = 200'000'000};

// A client whose time the test moves, connected to a server. Empty if the transport sends no
// heartbeats.
struct Watching {
  explicit Watching(Harness& harness, const Hearts& hearts = {})
      : client{harness.NewWatchful(&client_clock, hearts)} {
    if (client.transport == nullptr) return;
    server.transport = harness.NewTransport();
    const auto listening = server.transport->Listen({});
    REQUIRE(listening.ok());
    const auto connecting = client.transport->Connect(*listening);
    REQUIRE(connecting.ok());
    connection = *connecting;
    REQUIRE(PollUntil({&client, &server}, [&] {
      return !server.sink.accepted.empty() && !client.sink.connected.empty();
    }));
  }

  bool none() const { return client.transport == nullptr; }

  runtime::ManualClock client_clock{1'000'000'000};
  Endpoint client;
  Endpoint server;
  ConnectionId connection;
};

TEST_CASE("Transport: a peer that falls silent is given up, however little there was to send",
          "[transport]") {
  const auto harness = NewHarness();
  // The server is as good as stopped: its kernel takes what comes, and nobody polls.
  Watching f(*harness, {.silence_ns = 12'000'000'000});
  if (f.none()) return;
  for (int heartbeats = 1; f.client.sink.disconnected.empty(); ++heartbeats) {
    REQUIRE(heartbeats <= 8);
    f.client_clock.Advance(2'000'000'000);
    f.client.Poll();
    if (heartbeats <= 5) REQUIRE(f.client.sink.disconnected.empty());
  }
  CHECK(f.client.sink.disconnected[0].first == f.connection);
  CHECK(f.client.transport->PostFrame(f.connection, FrameOf(1)) == PostResult::kGone);
  const std::string& reason = f.client.sink.disconnected[0].second;
  INFO(reason);
  CHECK(reason.find("was silent for 12000 ms") != std::string::npos);
}

TEST_CASE("Transport: what a peer sent before it fell silent arrives", "[transport]") {
  const auto harness = NewHarness();
  Watching f(*harness, {.silence_ns = 12'000'000'000});
  if (f.none()) return;
  f.server.transport->PostFrame(f.server.sink.accepted[0], FrameOf(5));
  PollUntilIdle({&f.server});
  for (int heartbeats = 1; f.client.sink.disconnected.empty(); ++heartbeats) {
    REQUIRE(heartbeats <= 8);
    f.client_clock.Advance(2'000'000'000);
    f.client.Poll();
  }
  REQUIRE(f.client.sink.frames.size() == 1);
  CHECK(NumberOf(f.client.sink.frames[0].second) == 5);
}

TEST_CASE("Transport: with silence_ns = 0 no silence ends a connection", "[transport]") {
  const auto harness = NewHarness();
  Watching f(*harness, {.silence_ns = 0});
  if (f.none()) return;
  for (int i = 0; i < 100; ++i) {
    f.client_clock.Advance(2'000'000'000);
    f.client.Poll();
  }
  CHECK(f.client.sink.disconnected.empty());
}

TEST_CASE("Transport: a process that was itself stopped blames nobody for the silence",
          "[transport]") {
  const auto harness = NewHarness();
  Watching f(*harness);
  if (f.none()) return;
  f.client_clock.Advance(600'000'000'000);
  f.client.Poll();
  CHECK(f.client.sink.disconnected.empty());
}

TEST_CASE("Transport: a connection with nothing to carry stays up", "[transport]") {
  const auto harness = NewHarness();
  const runtime::MonotonicClock clock;
  Endpoint client{harness->NewWatchful(&clock, kQuickHearts)};
  if (client.transport == nullptr) return;
  Endpoint server{harness->NewWatchful(&clock, kQuickHearts)};
  const auto address = server.transport->Listen({});
  REQUIRE(address.ok());
  const auto connection = client.transport->Connect(*address);
  REQUIRE(connection.ok());
  const int64_t end_ns = clock.NowNs() + 3 * kQuickHearts.silence_ns;
  PollUntil({&client, &server}, [&] { return clock.NowNs() > end_ns; });
  client.transport->PostFrame(*connection, FrameOf(1));
  REQUIRE(PollUntil({&client, &server}, [&] { return server.sink.frames.size() == 1; }));
  CHECK(client.sink.disconnected.empty());
  CHECK(server.sink.disconnected.empty());
}

TEST_CASE("Transport: a process that is stopped is given up, and hears of it when it goes on",
          "[transport]") {
  const auto harness = NewHarness();
  const runtime::MonotonicClock clock;
  Endpoint client{harness->NewWatchful(&clock, kQuickHearts)};
  if (client.transport == nullptr) return;
  ChildProcess child([&](int pipe) {
    const auto say = [pipe](const std::string& line) {
      TALWEG_CHECK(write(pipe, line.data(), line.size()) > 0);
    };
    Endpoint server{harness->NewTransport()};
    const auto address = server.transport->Listen({});
    say((address.ok() ? *address : "") + "\n");
    PollUntil({&server}, [&] { return !server.sink.disconnected.empty(); });
    say("over\n");
  });
  const auto connection = client.transport->Connect(child.ReadLine());
  REQUIRE(connection.ok());
  REQUIRE(PollUntil({&client}, [&] { return !client.sink.connected.empty(); }));
  child.Stop();
  // The client sleeps only on the descriptor, so the heartbeat must wake it.
  REQUIRE(PollUntil({&client}, [&] { return !client.sink.disconnected.empty(); }));
  child.Continue();
  CHECK(child.ReadLine() == "over");
}

}  // namespace
}  // namespace talweg::transport
