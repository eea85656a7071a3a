// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include "libs/aggregation/aggregator_core_fixture.h"

// Connections, views and fences (docs/protocol.md, sections 1 and 6).
namespace talweg::aggregation {
namespace {

using wire::WelcomeStatus;

wire::Welcome OnlyWelcome(const JobFixture& fixture, ConnectionId connection) {
  const auto welcomes = fixture.Sent<wire::Welcome>(connection);
  REQUIRE(welcomes.size() == 1);
  return welcomes[0];
}

TEST_CASE("AggregatorCore: a member of the view is welcomed with its credit", "[aggregation]") {
  JobFixture f({2, 2}, kGiB, {.credit_bytes = 12345});
  f.PublishView();
  f.SayHello(0);
  const wire::Welcome welcome = OnlyWelcome(f, Conn(0));
  CHECK(welcome.status == WelcomeStatus::kOk);
  CHECK(welcome.aggregator == JobFixture::kSelf);
  CHECK(welcome.credit_bytes == 12345);
  CHECK(f.job.members()[0].connection == Conn(0));
}

TEST_CASE("AggregatorCore: a Hello that comes before its view is held, not refused",
          "[aggregation]") {
  JobFixture f;
  f.SayHello(0);
  CHECK(f.effects_seen.empty());
  CHECK(f.job.counters().hellos_held == 1);
  f.PublishView();
  CHECK(OnlyWelcome(f, Conn(0)).status == WelcomeStatus::kOk);
}

TEST_CASE(
    "AggregatorCore: strangers, other views and other rank counts are refused with the reason",
    "[aggregation]") {
  JobFixture f;
  f.PublishView();
  wire::Hello stranger = f.HelloOf(0);
  stranger.member.incarnation = Incarnation{0x123456789abc0077};
  f.Say(Conn(0), wire::FrameType::kHello, std::vector{stranger});
  CHECK(OnlyWelcome(f, Conn(0)).status == WelcomeStatus::kNotInView);
  CHECK(OnlyWelcome(f, Conn(0)).text.find("(incarnation 77)") != std::string::npos);

  wire::Hello other_view = f.HelloOf(1);
  other_view.view_digest ^= 1;
  f.Say(Conn(1), wire::FrameType::kHello, std::vector{other_view});
  CHECK(OnlyWelcome(f, Conn(1)).status == WelcomeStatus::kViewDiffers);

  wire::Hello other_ranks = f.HelloOf(1);
  other_ranks.rank_count = 9;
  f.Say(Conn(1, 1), wire::FrameType::kHello, std::vector{other_ranks});
  CHECK(OnlyWelcome(f, Conn(1, 1)).status == WelcomeStatus::kViewDiffers);
  CHECK(f.job.counters().hellos_refused == 3);

  // The peer has time to read the refusal. Then the connection ends.
  CHECK(f.Seen<CloseConnection>().empty());
  f.now_ns += 10'000'000'000;
  f.job.OnTick(f.now_ns, f.effects);
  f.Perform();
  CHECK(f.Seen<CloseConnection>().size() == 3);
  CHECK(f.job.sessions().empty());
}

TEST_CASE("AggregatorCore: an aggregator that is not in the view refuses, and releases what it had",
          "[aggregation]") {
  JobFixture f;
  f.StartWith("w");
  CHECK(f.allocated.size() == 3);
  CHECK(f.budget.used_bytes() == 3 * 64);
  f.view.aggregators[0].incarnation = Incarnation{901};
  f.NextView();
  CHECK(f.Seen<CloseConnection>().size() == 2);
  CHECK(f.allocated.empty());
  CHECK(f.budget.used_bytes() == 0);
  f.SayHello(0, 1);
  CHECK(OnlyWelcome(f, Conn(0, 1)).status == WelcomeStatus::kNotInView);
}

TEST_CASE("AggregatorCore: the first frame must be a Hello, and a second Hello ends the connection",
          "[aggregation]") {
  JobFixture f;
  f.PublishView();
  f.SayReport(0);
  CHECK(f.Seen<CloseConnection>().size() == 1);
  f.SayHello(0);
  f.SayHello(0);
  CHECK(f.Seen<CloseConnection>().size() == 2);
  CHECK(f.job.sessions().empty());
  CHECK(f.job.counters().frames_unexpected == 2);
}

TEST_CASE("AggregatorCore: frames that only aggregators send end the connection", "[aggregation]") {
  JobFixture f;
  f.Start();
  f.Say(Conn(0), wire::FrameType::kDecision, std::vector<wire::Decision>(1));
  CHECK(f.Seen<CloseConnection>().size() == 1);
  CHECK_FALSE(f.job.members()[0].connection.has_value());
}

TEST_CASE("AggregatorCore: a newer connection of the same agent replaces the older one",
          "[aggregation]") {
  JobFixture f;
  f.Start();
  f.SayHello(0, 1);
  REQUIRE(f.Seen<CloseConnection>().size() == 1);
  CHECK(f.Seen<CloseConnection>()[0].connection == Conn(0));
  CHECK(OnlyWelcome(f, Conn(0, 1)).status == WelcomeStatus::kOk);
  CHECK(f.job.members()[0].connection == Conn(0, 1));
  CHECK(f.job.counters().connections_replaced == 1);
  // The close comes before the welcome: nothing from the old connection lands after that.
  CHECK(std::holds_alternative<CloseConnection>(f.effects_seen[0]));
}

TEST_CASE("AggregatorCore: unreadable bytes and goodbyes end a connection and are counted",
          "[aggregation]") {
  JobFixture f;
  f.Start();
  f.job.OnUnreadable(Conn(0), "magic is 7", f.effects);
  f.Perform();
  wire::Frame goodbye;
  goodbye.header = {.type = wire::FrameType::kGoodbye, .job = JobFixture::kJob};
  f.SayFrame(Conn(1), goodbye);
  CHECK(f.Seen<CloseConnection>().size() == 2);
  CHECK(f.job.counters().frames_unreadable == 1);
  CHECK(f.job.counters().goodbyes == 1);
}

TEST_CASE("AggregatorCore: a fence is acknowledged when the aggregator has the view itself",
          "[aggregation]") {
  JobFixture f;
  f.Start();
  f.epoch_override = Epoch{2};
  f.SayFence(0);
  CHECK(f.effects_seen.empty());
  f.epoch_override.reset();
  f.NextView();
  REQUIRE(f.Sent<wire::FenceAck>(Conn(0)).size() == 1);
  CHECK(f.Seen<Send>()[0].epoch == Epoch{2});
  CHECK(f.Sent<wire::FenceAck>(Conn(1)).empty());
  f.SayFence(1);
  CHECK(f.Sent<wire::FenceAck>(Conn(1)).size() == 1);
}

TEST_CASE("AggregatorCore: fences of views that are over are not answered", "[aggregation]") {
  JobFixture f;
  f.Start();
  f.NextView();
  f.NextView();
  f.epoch_override = Epoch{2};
  f.SayFence(0);
  CHECK(f.Sent<wire::FenceAck>(Conn(0)).empty());
  f.epoch_override.reset();
  f.SayFence(0);
  CHECK(f.Sent<wire::FenceAck>(Conn(0)).size() == 1);
}

TEST_CASE("AggregatorCore: a new view first closes the members that are out", "[aggregation]") {
  JobFixture f({1, 1, 1});
  f.StartWith("w");
  f.NextView({1});
  REQUIRE(f.Seen<CloseConnection>().size() == 1);
  CHECK(f.Seen<CloseConnection>()[0].connection == Conn(1));
  CHECK(std::holds_alternative<CloseConnection>(f.effects_seen[0]));
  CHECK(f.Seen<ReleaseMemory>().size() == 1);  // Its slots, after the close.
  // It comes back, but is not a member any more.
  f.SayHello(1, 1);
  CHECK(OnlyWelcome(f, Conn(1, 1)).status == WelcomeStatus::kNotInView);
}

TEST_CASE("AggregatorCore: nothing of the new epoch is taken before the fence", "[aggregation]") {
  JobFixture f;
  f.StartWith("w");
  f.NextView();
  f.effects_seen.clear();
  f.Contribute(0, "w", 1);  // The frame says epoch 2, on a connection of epoch 1.
  CHECK(f.RefusedCount(wire::RefusedReason::kWrongEpoch) == 1);
  f.epoch_override = Epoch{1};
  f.Contribute(0, "w", 1);  // It was on its way when the view changed.
  CHECK(f.job.counters().contributions_late == 1);
  CHECK(f.Sent<wire::Refused>(Conn(0)).size() == 1);
}

TEST_CASE("AggregatorCore: views that are older, equal or broken are ignored", "[aggregation]") {
  JobFixture f;
  f.Start();
  view::View older = f.view;
  older.epoch = Epoch{1};
  older.members.clear();
  f.job.OnView(older, f.now_ns, f.effects);
  view::View broken = f.view;
  broken.epoch = Epoch{9};
  broken.slice_bytes_max = 3;
  f.job.OnView(broken, f.now_ns, f.effects);
  CHECK(f.effects.empty());
  CHECK(f.job.view() == f.view);
}

TEST_CASE("AggregatorCore: a closed job tells everybody why, then ends and releases",
          "[aggregation]") {
  JobFixture f;
  f.StartWith("w");
  f.job.OnClosed("node 1 died", f.now_ns, f.effects);
  f.Perform();
  REQUIRE(f.Sent<wire::Failed>(Conn(0)).size() == 1);
  CHECK(f.Sent<wire::Failed>(Conn(0))[0].code == wire::FailedCode::kJobFailed);
  CHECK(f.Sent<wire::Failed>(Conn(0))[0].text == "node 1 died");
  CHECK_FALSE(f.job.finished());
  CHECK(f.allocated.size() == 3);
  f.job.OnDisconnect(Conn(0), f.effects);
  CHECK_FALSE(f.job.Status(f.now_ns, false).members[0].connected);
  f.now_ns += 10'000'000'000;
  f.job.OnTick(f.now_ns, f.effects);
  f.Perform();
  CHECK(f.job.finished());
  CHECK(f.allocated.empty());
  CHECK(f.budget.used_bytes() == 0);
}

// Returns the notice that node 0 gets after `seconds`: it names whom the job waits for.
std::vector<wire::Waiting> WaitingToldIn(JobFixture& f, int64_t seconds) {
  f.effects_seen.clear();
  f.job.OnTick(f.now_ns + seconds * 1'000'000'000, f.effects);
  f.Perform();
  return f.Sent<wire::Waiting>(Conn(0));
}

TEST_CASE("AggregatorCore: members that have entered the epoch hear who has not", "[aggregation]") {
  JobFixture f;
  f.PublishView();
  f.SayHello(0);
  f.SayReport(0);
  CHECK(WaitingToldIn(f, 0).empty());
  const auto notices = WaitingToldIn(f, 1);
  REQUIRE(notices.size() == 1);
  CHECK(notices[0].key == TensorKey{0});
  CHECK(notices[0].missing_nodes == std::vector<uint32_t>{1});
  // Counted from when the view came.
  CHECK(notices[0].absent_ns == std::vector<uint64_t>{1'000'000'000});
  f.SayHello(1);
  f.SayReport(1);
  CHECK(WaitingToldIn(f, 10).empty());
}

TEST_CASE("AggregatorCore: a member that said goodbye is named as one that has left",
          "[aggregation]") {
  JobFixture f;
  f.PublishView();
  f.SayHello(0);
  f.SayReport(0);
  f.SayHello(1);
  const auto told = [&f](int64_t seconds) {
    const auto notices = WaitingToldIn(f, seconds);
    REQUIRE(notices.size() == 1);
    CHECK(notices[0].missing_nodes == std::vector<uint32_t>{1});
    return notices[0].left_nodes;
  };
  CHECK(told(1).empty());
  wire::Frame goodbye;
  goodbye.header = {.type = wire::FrameType::kGoodbye, .job = JobFixture::kJob};
  f.SayFrame(Conn(1), goodbye);
  CHECK(told(3) == std::vector<uint32_t>{1});
}

TEST_CASE(
    "AggregatorCore: a member that has not heard of the newest view hears so in the one it holds",
    "[aggregation]") {
  JobFixture f;
  f.Start();
  f.NextView();
  f.SayFence(0);
  f.SayReport(0);
  for (int second = 0; second <= 1; ++second) {
    f.effects_seen.clear();
    f.job.OnTick(f.now_ns + second * 1'000'000'000, f.effects);
    f.Perform();
  }
  for (const uint32_t node : {0u, 1u}) {
    const auto notices = f.Sent<wire::Waiting>(Conn(node));
    REQUIRE(notices.size() == 1);
    CHECK(notices[0].key == TensorKey{0});
    CHECK(notices[0].missing_nodes == std::vector<uint32_t>{1});
    CHECK(notices[0].absent_ns == std::vector<uint64_t>{1'000'000'000});
  }
  for (const Send& send : f.Seen<Send>()) {
    CHECK(send.epoch == (send.connection == Conn(0) ? Epoch{2} : Epoch{1}));
  }
}

}  // namespace
}  // namespace talweg::aggregation
