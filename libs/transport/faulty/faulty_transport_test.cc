// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/faulty/faulty_transport.h"

#include <catch2/catch.hpp>

#include "libs/runtime/clock.h"
#include "libs/runtime/manual_clock.h"
#include "libs/transport/loopback/loopback_transport.h"
#include "libs/transport/testing/harness.h"

namespace talweg::transport {
namespace {

// A transport with delays keeps all its promises.
class FaultyHarness final : public Harness {
 public:
  std::unique_ptr<Transport> NewTransport() override {
    return NewFaultyTransport(network_->NewTransport(),
                              {.seed = ++seed_, .frame_delay_ns_max = 200'000}, &clock_);
  }
  std::string NobodysAddress() override { return "loopback://1000000"; }
  bool CrossesProcesses() const override { return false; }

 private:
  runtime::MonotonicClock clock_;
  uint64_t seed_ = 0;
  std::unique_ptr<LoopbackNetwork> network_ = NewLoopbackNetwork();
};

}  // namespace

std::unique_ptr<Harness> NewHarness() { return std::make_unique<FaultyHarness>(); }

namespace {

TEST_CASE("Faulty: time passes between a write and the frame after it", "[transport]") {
  const auto network = NewLoopbackNetwork();
  runtime::ManualClock clock;
  Endpoint client{NewFaultyTransport(network->NewTransport(),
                                     {.seed = 5, .frame_delay_ns_max = 1'000'000}, &clock)};
  Endpoint server{network->NewTransport()};
  const auto address = server.transport->Listen({});
  const auto connection = client.transport->Connect(*address);
  REQUIRE(connection.ok());
  std::vector<std::byte> source(64, std::byte{1});
  std::vector<std::byte> target(64);
  const auto from = client.transport->Register(source);
  const auto to = server.transport->Register(target);
  client.transport->PostWrite(*connection, from->Slice(0, 64), to->Ref(), 1);
  client.transport->PostFrame(*connection, FrameOf(1));
  for (int i = 0; i < 10; ++i) {
    client.Poll();
    server.Poll();
  }
  CHECK(target == source);
  CHECK(server.sink.frames.empty());
  clock.Advance(1'000'000);
  for (int i = 0; i < 10; ++i) {
    client.Poll();
    server.Poll();
  }
  CHECK(server.sink.frames.size() == 1);
}

TEST_CASE("Faulty: connections break after as many operations as the seed says", "[transport]") {
  std::vector<size_t> lives;
  for (const uint64_t seed : {1, 1, 2, 3, 4, 5, 6}) {
    const auto network = NewLoopbackNetwork();
    runtime::ManualClock clock;
    Endpoint client{NewFaultyTransport(network->NewTransport(),
                                       {.seed = seed, .break_after_operations_max = 50}, &clock)};
    Endpoint server{network->NewTransport()};
    const auto address = server.transport->Listen({});
    const auto connection = client.transport->Connect(*address);
    REQUIRE(connection.ok());
    for (uint64_t i = 0; i < 100; ++i) {
      client.transport->PostFrame(*connection, FrameOf(i));
      for (int turn = 0; turn < 3; ++turn) {
        client.Poll();
        server.Poll();
      }
    }
    REQUIRE(PollUntil({&client, &server}, [&] {
      return !client.sink.disconnected.empty() && !server.sink.disconnected.empty();
    }));
    CHECK(client.transport->PostFrame(*connection, FrameOf(1)) == PostResult::kGone);
    CHECK(server.sink.frames.size() <= 50);
    lives.push_back(server.sink.frames.size());
  }
  CHECK(lives[0] == lives[1]);
  CHECK(std::adjacent_find(lives.begin() + 1, lives.end(), std::not_equal_to<>()) != lives.end());
}

}  // namespace
}  // namespace talweg::transport
