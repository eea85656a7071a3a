// SPDX-License-Identifier: Apache-2.0
#include "services/agent/agent_data_plane.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/runtime/manual_clock.h"
#include "libs/transport/loopback/loopback_transport.h"

namespace talweg::agent {
namespace {

struct Ends final : PeerEvents {
  void OnPeerConnected(ConnectionId /*connection*/) override {}
  void OnPeerDisconnected(ConnectionId connection, const std::string& reason) override {
    ends.emplace_back(connection, reason);
  }
  void OnPeerFrame(ConnectionId /*connection*/, const wire::Frame& /*frame*/) override {}

  std::vector<std::pair<ConnectionId, std::string>> ends;
};

TEST_CASE("AgentDataPlane: an error shows an address without its key", "[agent]") {
  const auto network = transport::NewLoopbackNetwork();
  const auto transport = network->NewTransport();
  runtime::ManualClock clock;
  Timeline timeline(0);
  Ends ends;
  AgentDataPlane plane({.host_id = "here"}, transport.get(), nullptr, &timeline, &clock, &ends);
  plane.Do(pipeline::Connect{.connection = ConnectionId{7},
                             .name = "a0",
                             .data_address = "local:@talweg-0123456789abcdef",
                             .host_id = "elsewhere"});
  plane.Poll(10);
  REQUIRE(ends.ends.size() == 1);
  CHECK(ends.ends[0].first == ConnectionId{7});
  CHECK(ends.ends[0].second ==
        "aggregator 'a0' offers no address that this agent can connect to: 'local'");
}

}  // namespace
}  // namespace talweg::agent
