// SPDX-License-Identifier: Apache-2.0
// Conformance of transports, second part: closing, broken connections, strangers and sleep.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include <catch2/catch.hpp>

#include "libs/base/bytes.h"
#include "libs/base/descriptor.h"
#include "libs/base/random.h"
#include "libs/base/shown_address.h"
#include "libs/transport/testing/harness.h"

namespace talweg::transport {
namespace {

// Returns what texts call an address. They leave out what only peers need to know.
std::string NameOf(std::string address) {
  if (const size_t host = address.find("://"); host != std::string::npos) {
    address.resize(std::min(address.size(), address.find('/', host + 3)));
  }
  if (address.starts_with("local:")) {
    address.resize(std::min(address.size(), address.find('#')));
  }
  return address;
}

TEST_CASE("Transport: closing tells the peer, and ends posting", "[transport]") {
  const auto harness = NewHarness();
  Pair pair(*harness);
  REQUIRE(pair.connected);
  pair.client.transport->Close(pair.to_server);
  CHECK(pair.client.transport->PostFrame(pair.to_server, FrameOf(1)) == PostResult::kGone);
  CHECK(pair.client.transport->PendingBytes(pair.to_server) == 0);
  REQUIRE(PollUntil({&pair.client, &pair.server},
                    [&] { return !pair.server.sink.disconnected.empty(); }));
  CHECK(pair.server.sink.disconnected[0].first == pair.to_client);
  CHECK_FALSE(pair.server.sink.disconnected[0].second.empty());
  CHECK(pair.client.sink.disconnected.empty());
  CHECK(pair.server.transport->PostFrame(pair.to_client, FrameOf(1)) == PostResult::kGone);
  // Ids are not used again, and closing twice has no effect.
  pair.client.transport->Close(pair.to_server);
  const auto again = pair.client.transport->Connect(pair.address);
  REQUIRE(again.ok());
  CHECK(*again != pair.to_server);
}

TEST_CASE("Transport: frames that had left are delivered before the end", "[transport]") {
  const auto harness = NewHarness();
  Pair pair(*harness);
  REQUIRE(pair.connected);
  for (uint64_t i = 0; i < 5; ++i) pair.client.transport->PostFrame(pair.to_server, FrameOf(i));
  REQUIRE(PollUntil({&pair.client},
                    [&] { return pair.client.transport->PendingBytes(pair.to_server) == 0; }));
  pair.client.transport->Close(pair.to_server);
  REQUIRE(PollUntil({&pair.server}, [&] { return !pair.server.sink.disconnected.empty(); }));
  CHECK(pair.server.sink.frames.size() == 5);
}

TEST_CASE("Transport: nothing lands after Close has returned", "[transport]") {
  const auto harness = NewHarness();
  Pair pair(*harness);
  REQUIRE(pair.connected);
  std::vector<std::byte> source(8 * kMiB, std::byte{1});
  std::vector<std::byte> target(8 * kMiB);
  const auto from = pair.client.transport->Register(source);
  const auto to = pair.server.transport->Register(target);
  REQUIRE(from.ok());
  REQUIRE(to.ok());
  for (uint64_t i = 0; i < 4; ++i) {
    pair.client.transport->PostWrite(pair.to_server, from->Slice(0, source.size()), to->Ref(), i);
    pair.client.transport->PostFrame(pair.to_server, FrameOf(i));
  }
  // The first write is half done: its last bytes have not come yet.
  REQUIRE(PollUntil({&pair.client, &pair.server}, [&] { return target.front() == std::byte{1}; }));
  pair.server.transport->Close(pair.to_client);
  const size_t frames = pair.server.sink.frames.size();
  std::fill(target.begin(), target.end(), std::byte{0});
  PollUntilIdle({&pair.client, &pair.server});
  CHECK(std::all_of(target.begin(), target.end(), [](std::byte b) { return b == std::byte{0}; }));
  CHECK(pair.server.sink.frames.size() == frames);
  CHECK(pair.server.sink.disconnected.empty());
  CHECK(pair.client.sink.disconnected.size() == 1);
}

TEST_CASE("Transport: a sink may close and post from inside an event", "[transport]") {
  const auto harness = NewHarness();
  Pair pair(*harness);
  REQUIRE(pair.connected);
  pair.server.sink.on_frame = [&](ConnectionId connection, std::span<const std::byte> frame) {
    if (NumberOf(frame) < 3) {
      pair.server.transport->PostFrame(connection, FrameOf(NumberOf(frame)));
    } else {
      pair.server.transport->Close(connection);
    }
  };
  for (uint64_t i = 0; i < 20; ++i) pair.client.transport->PostFrame(pair.to_server, FrameOf(i));
  REQUIRE(PollUntil({&pair.client, &pair.server},
                    [&] { return !pair.client.sink.disconnected.empty(); }));
  PollUntilIdle({&pair.client, &pair.server});
  CHECK(pair.server.sink.frames.size() == 4);
  CHECK(pair.server.sink.disconnected.empty());
}

TEST_CASE("Transport: connecting to nobody fails and names the address", "[transport]") {
  const auto harness = NewHarness();
  Endpoint client{harness->NewTransport()};
  const std::string address = harness->NobodysAddress();
  const auto connection = client.transport->Connect(address);
  REQUIRE(connection.ok());
  REQUIRE(PollUntil({&client}, [&] { return !client.sink.disconnected.empty(); }));
  CHECK(client.sink.disconnected[0].first == *connection);
  INFO(client.sink.disconnected[0].second);
  CHECK(client.sink.disconnected[0].second.find(NameOf(address)) != std::string::npos);
  CHECK(client.sink.connected.empty());
}

TEST_CASE("Transport: an attempt to connect can be closed", "[transport]") {
  const auto harness = NewHarness();
  Endpoint client{harness->NewTransport()};
  const auto connection = client.transport->Connect(harness->NobodysAddress());
  REQUIRE(connection.ok());
  client.transport->Close(*connection);
  PollUntilIdle({&client});
  CHECK(client.sink.disconnected.empty());
}

TEST_CASE("Transport: the error for an invalid address shows what an address looks like",
          "[transport]") {
  const auto harness = NewHarness();
  Endpoint client{harness->NewTransport()};
  for (const char* address :
       {"", "127.0.0.1:80", "fi:", "fi:tcp://127.0.0.1:80/token", "local:", "loopback://",
        "fi:tcp://", "fi:tcp://127.0.0.1", "fi:tcp://127.0.0.1:99999", "fi:tcp://:1"}) {
    const auto connection = client.transport->Connect(address);
    INFO(address);
    REQUIRE_FALSE(connection.ok());
    // An address with a wrong token may be right tomorrow.
    const std::string message(connection.status().message());
    CHECK(message.find("'" + ShownAddress(address)) != std::string::npos);
    CHECK(message.find("/token") == std::string::npos);
  }
}

TEST_CASE("Transport: a write under a key that belongs to no region ends only its connection",
          "[transport]") {
  const auto harness = NewHarness();
  Pair pair(*harness);
  REQUIRE(pair.connected);
  std::vector<std::byte> source(4096, std::byte{1});
  std::vector<std::byte> target(4096);
  const auto from = pair.client.transport->Register(source);
  auto to = pair.server.transport->Register(target);
  REQUIRE(from.ok());
  REQUIRE(to.ok());
  const auto other = pair.client.transport->Connect(pair.address);
  REQUIRE(other.ok());
  REQUIRE(PollUntil({&pair.client, &pair.server},
                    [&] { return pair.server.sink.accepted.size() == 2; }));

  wire::RemoteRef ref = to->Ref();
  SECTION("The key is another one") { ref.key ^= 0x5555; }
  SECTION("The write goes past the end") { ref.address += 1; }
  SECTION("The write goes far past the end") { ref.address = ~uint64_t{0} - 100; }
  SECTION("The region is gone") { *to = Region(); }
  pair.client.transport->PostWrite(pair.to_server, from->Slice(0, 4096), ref, 1);
  pair.client.transport->PostFrame(pair.to_server, FrameOf(1));
  REQUIRE(PollUntil({&pair.client, &pair.server}, [&] {
    return !pair.client.sink.disconnected.empty() && !pair.server.sink.disconnected.empty();
  }));
  CHECK(pair.server.sink.disconnected[0].first == pair.to_client);
  CHECK(pair.server.sink.frames.empty());
  CHECK(std::all_of(target.begin(), target.end(), [](std::byte b) { return b == std::byte{0}; }));

  pair.client.transport->PostFrame(*other, FrameOf(2));
  REQUIRE(
      PollUntil({&pair.client, &pair.server}, [&] { return pair.server.sink.frames.size() == 1; }));
}

TEST_CASE("Transport: keys differ from region to region and from process to process",
          "[transport]") {
  const auto harness = NewHarness();
  std::vector<std::byte> memory(4096);
  std::set<uint64_t> keys;
  for (int i = 0; i < 4; ++i) {
    Endpoint endpoint{harness->NewTransport()};
    for (int j = 0; j < 8; ++j) keys.insert(endpoint.transport->Register(memory)->Ref().key);
  }
  CHECK(keys.size() == 32);
}

TEST_CASE("Transport: when the peer's process is killed, the other side is told", "[transport]") {
  const auto harness = NewHarness();
  if (!harness->CrossesProcesses()) return;
  ChildProcess child([&](int pipe) {
    Endpoint server{harness->NewTransport()};
    const auto address = server.transport->Listen({});
    const std::string line = (address.ok() ? *address : "") + "\n";
    if (write(pipe, line.data(), line.size()) < 0) return;
    PollUntil({&server}, [] { return false; });
  });
  const std::string address = child.ReadLine();
  Endpoint client{harness->NewTransport()};
  const auto connection = client.transport->Connect(address);
  REQUIRE(connection.ok());
  REQUIRE(PollUntil({&client}, [&] { return !client.sink.connected.empty(); }));
  SECTION("The connection is idle") {}
  SECTION("Operations are pending") {
    child.Stop();
    for (uint64_t i = 0; i < 2000; ++i) client.transport->PostFrame(*connection, FrameOf(i, 60000));
    PollUntilIdle({&client});
  }
  child.Kill();
  REQUIRE(PollUntil({&client}, [&] { return !client.sink.disconnected.empty(); }));
  INFO(client.sink.disconnected[0].second);
  // The text names the one address that was connected to.
  std::string name = SelectAddress(address, /*same_host=*/false);
  if (name.empty()) name = address;
  CHECK(client.sink.disconnected[0].second.find(NameOf(name)) != std::string::npos);
}

// Sleeps whenever there is no work, as a thread does that has nothing else to do. Returns false
// when nothing has woken it for half a minute.
bool SleepUntil(Endpoint& endpoint, const std::function<bool()>& done) {
  while (!done()) {
    if (endpoint.Poll() > 0 || !endpoint.transport->PrepareToSleep()) continue;
    pollfd descriptor{endpoint.transport->WaitDescriptor(), POLLIN, 0};
    if (poll(&descriptor, 1, 30'000) == 0) return false;
  }
  return true;
}

// Each side sleeps until its descriptor is readable. A lost wake-up leaves both asleep for ever.
TEST_CASE("Transport: no wake-up is lost between two sleepers", "[transport]") {
  const auto harness = NewHarness();
  Pair pair(*harness);
  REQUIRE(pair.connected);
  constexpr uint64_t kRounds = 2000;
  std::atomic<int> timeouts{0};
  const auto play = [&](Endpoint& endpoint, ConnectionId peer, bool begins) {
    endpoint.sink.on_frame = [&, peer](ConnectionId, std::span<const std::byte> frame) {
      if (NumberOf(frame) < kRounds) {
        endpoint.transport->PostFrame(peer, FrameOf(NumberOf(frame) + 1));
      }
    };
    if (begins) endpoint.transport->PostFrame(peer, FrameOf(0));
    // The last frame may still need help on its way.
    const bool finished = SleepUntil(endpoint, [&] {
      return endpoint.sink.frames.size() >= kRounds / 2 &&
             endpoint.transport->PendingBytes(peer) == 0;
    });
    if (!finished) ++timeouts;
  };
  std::thread other([&] { play(pair.server, pair.to_client, false); });
  play(pair.client, pair.to_server, true);
  other.join();
  CHECK(timeouts == 0);
}

// Writes fill every buffer in between, so both sides sleep while there is much to send.
TEST_CASE("Transport: no wake-up is lost in a stream of writes", "[transport]") {
  const auto harness = NewHarness();
  Pair pair(*harness);
  REQUIRE(pair.connected);
  std::vector<std::byte> source = Pattern(1, 3 * kMiB);
  std::vector<std::byte> target(3 * kMiB);
  const auto from = pair.client.transport->Register(source);
  const auto to = pair.server.transport->Register(target);
  REQUIRE(from.ok());
  REQUIRE(to.ok());
  constexpr uint64_t kWrites = 60;
  std::atomic<int> timeouts{0};
  const auto run = [&](Endpoint& endpoint, const auto& done) {
    if (!SleepUntil(endpoint, done)) ++timeouts;
  };
  for (uint64_t i = 0; i < kWrites; ++i) {
    pair.client.transport->PostWrite(pair.to_server, from->Slice(0, source.size()), to->Ref(), i);
    pair.client.transport->PostFrame(pair.to_server, FrameOf(i));
  }
  std::thread other([&] {
    run(pair.server, [&] { return pair.server.sink.frames.size() == kWrites; });
    pair.server.transport->PostFrame(pair.to_client, FrameOf(0));
    run(pair.server, [&] { return pair.server.transport->PendingBytes(pair.to_client) == 0; });
  });
  run(pair.client, [&] { return pair.client.sink.frames.size() == 1; });
  other.join();
  CHECK(timeouts == 0);
  CHECK(target == source);
}

TEST_CASE("Transport: strangers' bytes at the listening socket do no harm", "[transport]") {
  const auto harness = NewHarness();
  Pair pair(*harness);
  REQUIRE(pair.connected);
  if (Descriptor(harness->ConnectRaw(pair.address)).get() < 0) return;
  Random random(4);
  std::vector<std::unique_ptr<Descriptor>> strangers;
  for (int i = 0; i < 40; ++i) {
    auto stranger = std::make_unique<Descriptor>(harness->ConnectRaw(pair.address));
    REQUIRE(stranger->valid());
    // Sends nothing, half a header, or kilobytes of noise with some huge lengths in it.
    const size_t sizes[] = {0, 1, 3, 16, 17, 256, 4096};
    std::vector<std::byte> noise = Pattern(random.Next(), sizes[random.Below(std::size(sizes))]);
    if (random.OneIn(3)) std::fill(noise.begin(), noise.end(), std::byte{0xff});
    if (!noise.empty()) send(stranger->get(), noise.data(), noise.size(), MSG_NOSIGNAL);
    // Some strangers hang up, and some stay.
    if (random.OneIn(2)) strangers.push_back(std::move(stranger));
    pair.server.Poll();
  }
  PollUntilIdle({&pair.client, &pair.server});
  CHECK(pair.server.sink.accepted.size() == 1);
  CHECK(pair.server.sink.disconnected.empty());

  pair.client.transport->PostFrame(pair.to_server, FrameOf(2));
  const auto late = pair.client.transport->Connect(pair.address);
  REQUIRE(late.ok());
  REQUIRE(PollUntil({&pair.client, &pair.server}, [&] {
    return pair.server.sink.frames.size() == 1 && pair.server.sink.accepted.size() == 2;
  }));
}

TEST_CASE("Transport: connections come and go", "[transport]") {
  const auto harness = NewHarness();
  Endpoint client{harness->NewTransport()};
  Endpoint server{harness->NewTransport()};
  const auto address = server.transport->Listen({});
  REQUIRE(address.ok());
  Random random(11);
  for (uint64_t i = 0; i < 60; ++i) {
    const auto connection = client.transport->Connect(*address);
    REQUIRE(connection.ok());
    client.transport->PostFrame(*connection, FrameOf(i));
    const size_t frames = server.sink.frames.size();
    if (random.OneIn(3)) {
      client.transport->Close(*connection);
    } else {
      REQUIRE(
          PollUntil({&client, &server}, [&] { return server.sink.frames.size() == frames + 1; }));
      if (random.OneIn(2)) {
        server.transport->Close(server.sink.frames.back().first);
      } else {
        client.transport->Close(*connection);
      }
    }
  }
  PollUntilIdle({&client, &server});
  const auto connection = client.transport->Connect(*address);
  REQUIRE(connection.ok());
  client.transport->PostFrame(*connection, FrameOf(1000));
  REQUIRE(PollUntil({&client, &server}, [&] {
    return !server.sink.frames.empty() && NumberOf(server.sink.frames.back().second) == 1000;
  }));
}

}  // namespace
}  // namespace talweg::transport
