// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/owner_links.h"

#include <catch2/catch.hpp>

#include "libs/pipeline/agent_core_fixture.h"

namespace talweg::pipeline {
namespace {

using testing::Fixture;
using testing::MakeView;

constexpr int64_t kMillisecond = 1'000'000;

struct Linked {
  void Enter(const view::View& view) {
    views.Enter(view);
    links.OnView(now_ns, out);
  }
  ConnectionId ConnectionTo(uint32_t owner) const {
    return links.At(AggregatorIndex{owner}).connection;
  }
  OwnerState StateOf(uint32_t owner) const { return links.At(AggregatorIndex{owner}).state; }
  OwnerLinks::Answer Welcome(uint32_t owner,
                             wire::WelcomeStatus status = wire::WelcomeStatus::kOk) {
    wire::Frame frame;
    frame.header.epoch = views.newest()->epoch;
    frame.entries =
        std::vector<wire::Welcome>{{.status = status,
                                    .aggregator = links.At(AggregatorIndex{owner}).incarnation,
                                    .credit_bytes = 8 * kMiB}};
    return links.OnWelcome(ConnectionTo(owner), frame, now_ns, out);
  }
  void MakeReady(uint32_t owner) {
    links.OnConnected(ConnectionTo(owner), out);
    REQUIRE(Welcome(owner) == OwnerLinks::Answer::kReady);
  }
  int CountOf(wire::FrameType type) const { return Fixture::CountFrames(out, type); }

  AgentCoreConfig config{.self = {NodeRank{0}, Incarnation{100}},
                         .host_id = "here",
                         .credit_bytes_max = 1 * kMiB,
                         .unreachable_ns = 1000 * kMillisecond};
  TickTimer timer;
  ViewState views{config.self, 1};
  OwnerLinks links{&config, &views, &timer};
  int64_t now_ns = 0;
  Effects out;
};

TEST_CASE("OwnerLinks: an owner is connected, greeted and ready", "[pipeline]") {
  Linked l;
  l.Enter(MakeView(1, {1, 1}, 2));
  CHECK(Fixture::Of<Connect>(l.out).size() == 2);
  CHECK(l.StateOf(0) == OwnerState::kConnecting);
  CHECK(l.Welcome(0) == OwnerLinks::Answer::kIgnored);  // The agent has not greeted this owner.
  l.links.OnConnected(l.ConnectionTo(0), l.out);
  CHECK(l.StateOf(0) == OwnerState::kGreeting);
  CHECK(l.CountOf(wire::FrameType::kHello) == 1);
  CHECK(l.Welcome(0) == OwnerLinks::Answer::kReady);
  CHECK(l.StateOf(0) == OwnerState::kReady);
  // This is the limit of this agent.
  CHECK(l.links.At(AggregatorIndex{0}).credit_bytes == 1 * kMiB);
  CHECK_FALSE(l.links.AreReady());
  l.MakeReady(1);
  CHECK(l.links.AreReady());
  l.links.CheckInvariants();
}

TEST_CASE("OwnerLinks: a new view fences the owners that stay, and closes the others",
          "[pipeline]") {
  Linked l;
  l.Enter(MakeView(1, {1, 1}, 3));
  l.MakeReady(0);
  l.MakeReady(1);
  const ConnectionId kept = l.ConnectionTo(1);
  const ConnectionId gone = l.ConnectionTo(0);
  const ConnectionId greeting = l.ConnectionTo(2);
  l.links.OnConnected(greeting, l.out);

  view::View view = MakeView(2, {1, 1}, 3);
  view.aggregators.erase(view.aggregators.begin());
  l.out.clear();
  l.Enter(view);
  CHECK(l.ConnectionTo(0) == kept);
  CHECK(l.StateOf(0) == OwnerState::kFencing);
  CHECK(l.CountOf(wire::FrameType::kFence) == 1);
  // This one was not welcomed yet, so it gets a new connection.
  CHECK(l.StateOf(1) == OwnerState::kConnecting);
  CHECK(l.links.Find(gone) == nullptr);
  CHECK(l.links.Find(greeting) == nullptr);
  CHECK(Fixture::Of<Close>(l.out).size() == 2);

  CHECK(l.links.OnFenceAck(kept, Epoch{1}) == OwnerLinks::Answer::kIgnored);
  CHECK(l.links.OnFenceAck(kept, Epoch{2}) == OwnerLinks::Answer::kReady);
  CHECK(l.links.OnFenceAck(kept, Epoch{2}) == OwnerLinks::Answer::kIgnored);
  CHECK(l.StateOf(0) == OwnerState::kReady);
}

TEST_CASE("OwnerLinks: a broken connection is made again, later each time", "[pipeline]") {
  Linked l;
  l.Enter(MakeView(1, {1, 1}, 1));
  l.MakeReady(0);
  CHECK(l.links.OnDisconnected(l.ConnectionTo(0), "reset", l.now_ns, l.out) == AggregatorIndex{0});
  for (const int64_t wait_ms : {50, 100, 200, 400, 800, 1600, 2000, 2000}) {
    CHECK(l.StateOf(0) == OwnerState::kBackoff);
    l.now_ns += wait_ms * kMillisecond - 1;
    l.links.Reconnect(l.now_ns, l.out);
    CHECK(l.StateOf(0) == OwnerState::kBackoff);
    l.timer.Clear();
    l.links.Reconnect(l.now_ns, l.out);
    CHECK(l.timer.next_ns() == l.now_ns + 1);
    l.links.Reconnect(++l.now_ns, l.out);
    CHECK(l.StateOf(0) == OwnerState::kConnecting);
    // The link was not ready, so nothing was lost with it.
    CHECK_FALSE(l.links.OnDisconnected(l.ConnectionTo(0), "reset", l.now_ns, l.out).has_value());
  }
}

TEST_CASE("OwnerLinks: a refusal is temporary or final", "[pipeline]") {
  Linked l;
  l.Enter(MakeView(1, {1, 1}, 2));
  l.links.OnConnected(l.ConnectionTo(0), l.out);
  l.links.OnConnected(l.ConnectionTo(1), l.out);
  CHECK(l.Welcome(0, wire::WelcomeStatus::kUnknownJob) == OwnerLinks::Answer::kLater);
  CHECK(l.StateOf(0) == OwnerState::kBackoff);
  CHECK(Fixture::Of<Close>(l.out).size() == 1);
  CHECK(l.Welcome(1, wire::WelcomeStatus::kVersion) == OwnerLinks::Answer::kNever);
}

TEST_CASE("OwnerLinks: an owner is unreachable when it has not been ready for too long",
          "[pipeline]") {
  Linked l;
  l.Enter(MakeView(1, {1, 1}, 2));
  l.MakeReady(0);
  l.timer.Clear();
  CHECK(l.links.FindUnreachable(999 * kMillisecond) == nullptr);
  CHECK(l.timer.next_ns() == 1000 * kMillisecond);
  REQUIRE(l.links.FindUnreachable(1000 * kMillisecond) != nullptr);
  CHECK(l.links.FindUnreachable(1000 * kMillisecond)->index == AggregatorIndex{1});
  l.MakeReady(1);
  CHECK(l.links.FindUnreachable(9000 * kMillisecond) == nullptr);
}

TEST_CASE("OwnerLinks: only owners that are ready are told of tensors", "[pipeline]") {
  Linked l;
  l.Enter(MakeView(1, {1, 1}, 2));
  l.MakeReady(0);
  l.links.AddUndeclared(AggregatorIndex{0}, TensorIndex{4});
  l.links.AddUndeclared(AggregatorIndex{0}, TensorIndex{3});
  l.links.AddUndeclared(AggregatorIndex{1}, TensorIndex{4});
  l.links.AddUndeclared(AggregatorIndex{7}, TensorIndex{4});
  CHECK(l.links.TakeUndeclared(AggregatorIndex{0}) ==
        std::set<TensorIndex>{TensorIndex{3}, TensorIndex{4}});
  CHECK(l.links.TakeUndeclared(AggregatorIndex{0}).empty());
  CHECK(l.links.TakeUndeclared(AggregatorIndex{1}).empty());
}

TEST_CASE("OwnerLinks: the end closes each connection, or says goodbye on it", "[pipeline]") {
  Linked l;
  l.Enter(MakeView(1, {1, 1}, 2));
  l.MakeReady(0);
  SECTION("A connection is closed") {
    l.links.CloseAll("why", l.out);
    CHECK(Fixture::Of<Close>(l.out).size() == 2);
  }
  SECTION("An owner that has welcomed the agent gets a goodbye") {
    l.links.SayGoodbye(l.out);
    CHECK(l.CountOf(wire::FrameType::kGoodbye) == 1);
    CHECK(Fixture::Of<Close>(l.out).empty());
  }
  CHECK(l.links.all().empty());
}

}  // namespace
}  // namespace talweg::pipeline
