// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/lobby.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/runtime/manual_clock.h"
#include "libs/transport/loopback/loopback_transport.h"

namespace talweg::aggregator {
namespace {

constexpr JobId kJob{5};
constexpr view::MemberIdentity kMember{NodeRank{0}, Incarnation{100}};
constexpr ConnectionId kFirst{1};
constexpr ConnectionId kSecond{2};
constexpr ConnectionId kThird{3};

// Connections have only names. What is posted to them goes nowhere.
struct Fixture {
  std::vector<std::byte> Hello(JobId job = kJob) const {
    wire::FrameWriter writer(wire::FrameType::kHello, job, Epoch{1});
    writer.Add(wire::Hello{.member = kMember, .rank_count = 1});
    return writer.Take();
  }
  void Accept(ConnectionId id, size_t others_of_peer = 0) {
    lobby.OnAccepted(id, {.host = "10.0.0.1"}, others_of_peer);
  }

  DataPlaneOptions options{.name = "agg", .incarnation = Incarnation{900}};
  runtime::ManualClock clock;
  std::unique_ptr<transport::LoopbackNetwork> network = transport::NewLoopbackNetwork();
  std::unique_ptr<transport::Transport> transport = network->NewTransport();
  EndedJobs ended{"agg"};
  DataPlaneTotals totals;
  Lobby lobby{&options, transport.get(), &clock, &ended, &totals};
};

TEST_CASE("Lobby: a Hello goes on to its job with the bytes that came before", "[aggregator]") {
  Fixture f;
  f.Accept(kFirst);
  const std::vector<std::byte> hello = f.Hello();
  const std::optional<wire::Frame> frame = f.lobby.OnFrame(kFirst, hello);
  REQUIRE(frame.has_value());
  CHECK(frame->header.job == kJob);
  const Lobby::Guest guest = f.lobby.Leave(kFirst);
  CHECK(guest.peer.host == "10.0.0.1");
  CHECK(guest.received_bytes == hello.size());
  CHECK(f.totals.received_bytes == hello.size());
  CHECK_FALSE(f.lobby.Has(kFirst));
}

TEST_CASE("Lobby: a Hello waits for its job, and is refused when the job does not come",
          "[aggregator]") {
  Fixture f;
  f.Accept(kFirst);
  f.Accept(kSecond);
  f.lobby.Hold(kFirst, kJob, kMember, f.Hello());
  f.lobby.Hold(kSecond, JobId{6}, kMember, f.Hello(JobId{6}));
  const auto arrivals = f.lobby.TakeHeld(kJob);
  REQUIRE(arrivals.size() == 1);
  CHECK(arrivals[0].id == kFirst);
  CHECK(arrivals[0].bytes == f.Hello());
  f.lobby.Leave(kFirst);

  f.clock.Advance(f.options.unknown_job_hold_ns);
  f.lobby.OnTick(f.clock.NowNs());
  CHECK(f.totals.hellos_for_unknown_jobs == 1);
  // The peer has time to read why.
  CHECK(f.lobby.Has(kSecond));
  CHECK_FALSE(f.lobby.OnFrame(kSecond, f.Hello()).has_value());
  f.clock.Advance(f.options.unknown_job_hold_ns);
  f.lobby.OnTick(f.clock.NowNs());
  CHECK_FALSE(f.lobby.Has(kSecond));
}

TEST_CASE("Lobby: of one member, only the newest Hello waits", "[aggregator]") {
  Fixture f;
  f.Accept(kFirst);
  f.Accept(kSecond);
  f.Accept(kThird);
  f.lobby.Hold(kFirst, kJob, {NodeRank{1}, Incarnation{100}}, f.Hello());
  SECTION("The older one has come first") {
    f.lobby.Hold(kSecond, kJob, kMember, f.Hello());
    f.lobby.Hold(kThird, kJob, kMember, f.Hello());
  }
  SECTION("The newer one has come first") {
    f.lobby.Hold(kThird, kJob, kMember, f.Hello());
    f.lobby.Hold(kSecond, kJob, kMember, f.Hello());
  }
  CHECK(f.lobby.ids() == std::vector{kFirst, kThird});
}

TEST_CASE("Lobby: a peer that sends anything but one Hello is closed", "[aggregator]") {
  Fixture f;
  f.Accept(kFirst);
  SECTION("It sends another frame") {
    wire::FrameWriter writer(wire::FrameType::kGoodbye, kJob, Epoch{1});
    CHECK_FALSE(f.lobby.OnFrame(kFirst, writer.Take()).has_value());
  }
  SECTION("It sends more before its Hello is answered") {
    f.lobby.Hold(kFirst, kJob, kMember, f.Hello());
    CHECK_FALSE(f.lobby.OnFrame(kFirst, f.Hello()).has_value());
  }
  SECTION("It sends bytes that are no frame") {
    CHECK_FALSE(f.lobby.OnFrame(kFirst, std::vector<std::byte>(100)).has_value());
    CHECK(f.totals.unreadable_frames == 1);
  }
  SECTION("It sends nothing") {
    f.clock.Advance(f.options.hello_timeout_ns);
    f.lobby.OnTick(f.clock.NowNs());
  }
  CHECK_FALSE(f.lobby.Has(kFirst));
}

TEST_CASE("Lobby: the oldest connection goes when there are too many", "[aggregator]") {
  Fixture f;
  f.options.peer_connections_max = 2;
  SECTION("One address has too many") {
    f.Accept(kFirst);
    f.Accept(kSecond);
    f.Accept(kThird);
    CHECK(f.lobby.ids() == std::vector{kSecond, kThird});
  }
  SECTION("One address has too many, and all others of it have come to jobs") {
    f.Accept(kFirst, 2);
    REQUIRE(f.lobby.Has(kFirst));
    CHECK_FALSE(f.lobby.OnFrame(kFirst, f.Hello()).has_value());
    CHECK_FALSE(f.lobby.OnFrame(kFirst, f.Hello()).has_value());
    CHECK(f.lobby.Has(kFirst));  // It is refused, and stays until it has read why.
  }
  SECTION("All addresses together have too many") {
    f.options.unproven_connections_max = 1;
    f.lobby.OnAccepted(kFirst, {.host = "10.0.0.1"}, 0);
    f.lobby.OnAccepted(kSecond, {.host = "10.0.0.2"}, 0);
    CHECK(f.lobby.ids() == std::vector{kSecond});
  }
  CHECK(f.totals.connections_over_limit == 1);
}

}  // namespace
}  // namespace talweg::aggregator
