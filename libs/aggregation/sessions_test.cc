// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/sessions.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/aggregation/core_parts_fixture.h"
#include "libs/view/numbers.h"

namespace talweg::aggregation {
namespace {

struct Fixture : CoreParts {
  wire::Hello HelloOf(uint32_t member) const {
    return {.member = view.members[member].id,
            .rank_count = 1,
            .view_digest = present.placement_digest(),
            .job_name = "job"};
  }
  // A Hello of somebody who says that a view has come that is not known here.
  void SayHelloAhead(const view::MemberIdentity& member, ConnectionId connection, Epoch epoch,
                     int64_t now_ns = 0) {
    wire::Hello hello = HelloOf(0);
    hello.member = member;
    sessions.OnHello(connection, epoch, hello, now_ns, out);
  }
  bool IsHeld(ConnectionId connection) const {
    const Session* const session = sessions.Find(connection);
    return session != nullptr && session->state == SessionState::kHeld;
  }
  void SayHello(uint32_t member, ConnectionId connection) {
    sessions.OnHello(connection, view.epoch, HelloOf(member), 0, out);
  }

  // Which connection was lost, and how many effects there were before.
  struct Lost {
    ConnectionId connection;
    std::optional<MemberIndex> member;
    size_t effects = 0;
  };
  std::vector<Lost> lost;
  Sessions sessions{
      &config, &present, &attendance, &counters,
      [this](ConnectionId connection, std::optional<MemberIndex> member, Effects& effects) {
        lost.push_back({connection, member, effects.size()});
      }};
};

TEST_CASE("Sessions: a member that is welcomed has entered", "[aggregation]") {
  Fixture f;
  f.SayHello(1, f.Conn(1));
  REQUIRE(f.Sent<wire::Welcome>().size() == 1);
  CHECK(f.Sent<wire::Welcome>()[0].second.status == wire::WelcomeStatus::kOk);
  CHECK(f.attendance.ConnectionOf(MemberIndex{1}) == f.Conn(1));
  CHECK(f.sessions.ActiveMember(f.Conn(1), *f.sessions.Find(f.Conn(1))) == MemberIndex{1});
  f.sessions.Lose(f.Conn(1), f.out);
  REQUIRE(f.lost.size() == 1);
  CHECK(f.lost[0].member == MemberIndex{1});
  CHECK(f.sessions.Find(f.Conn(1)) == nullptr);
  CHECK_FALSE(f.attendance.ConnectionOf(MemberIndex{1}).has_value());
}

TEST_CASE("Sessions: an older connection is over before the newer one is welcomed",
          "[aggregation]") {
  Fixture f;
  f.SayHello(0, ConnectionId{10});
  f.out.clear();
  f.SayHello(0, ConnectionId{30});
  REQUIRE(f.out.size() == 2);
  CHECK(std::get<CloseConnection>(f.out[0]).connection == ConnectionId{10});
  CHECK(std::get<Send>(f.out[1]).connection == ConnectionId{30});
  REQUIRE(f.lost.size() == 1);
  CHECK(f.lost[0].connection == ConnectionId{10});
  CHECK(f.lost[0].effects == 1);  // It was closed before, and the Welcome comes after.
  CHECK(f.attendance.ConnectionOf(MemberIndex{0}) == ConnectionId{30});

  // The newer connection's Hello may come first.
  f.SayHello(0, ConnectionId{20});
  CHECK(f.Of<CloseConnection>().back().connection == ConnectionId{20});
  CHECK(f.attendance.ConnectionOf(MemberIndex{0}) == ConnectionId{30});
}

TEST_CASE("Sessions: Hellos and Fences wait for their view", "[aggregation]") {
  Fixture f;
  f.SayHello(0, f.Conn(0));
  f.out.clear();
  f.sessions.OnFence(f.Conn(0), Epoch{2}, f.out);
  wire::Hello early = f.HelloOf(1);
  f.view.epoch = Epoch{2};
  early.view_digest = view::PlacementDigest(f.view);
  f.sessions.OnHello(f.Conn(1), Epoch{2}, early, 0, f.out);
  CHECK(f.out.empty());
  CHECK(f.counters.fences_held == 1);
  CHECK(f.counters.hellos_held == 1);

  f.Publish();
  CHECK(f.sessions.ThoseBehind() == std::vector{std::pair{f.Conn(0), Epoch{1}}});
  f.sessions.CloseWhoIsOut(f.out);
  CHECK(f.out.empty());
  f.sessions.AnswerThoseThatWaited(0, f.out);
  CHECK(f.Sent<wire::FenceAck>().size() == 1);
  CHECK(f.Sent<wire::Welcome>().size() == 1);
  CHECK(f.sessions.ThoseBehind().empty());
}

TEST_CASE("Sessions: a member that is out of the view is closed", "[aggregation]") {
  Fixture f;
  f.SayHello(0, f.Conn(0));
  f.SayHello(1, f.Conn(1));
  f.out.clear();
  f.view.members.pop_back();
  f.NextEpoch();
  f.sessions.CloseWhoIsOut(f.out);
  REQUIRE(f.Of<CloseConnection>().size() == 1);
  CHECK(f.Of<CloseConnection>()[0].connection == f.Conn(1));
  CHECK_FALSE(f.lost.at(0).member.has_value());
}

TEST_CASE("Sessions: a member that has departed does not wait for a later view", "[aggregation]") {
  Fixture f;
  const view::MemberIdentity gone = f.view.members[1].id;
  f.view.members.pop_back();
  f.NextEpoch();
  f.SayHelloAhead(gone, ConnectionId{20}, Epoch{3});
  REQUIRE(f.Sent<wire::Welcome>().size() == 1);
  const wire::Welcome welcome = f.Sent<wire::Welcome>()[0].second;
  CHECK(welcome.status == wire::WelcomeStatus::kNotInView);
  CHECK(welcome.text ==
        "node 1 is not in epoch 2 of job 'job' any more: it has to join again as a new "
        "incarnation");
  // Another incarnation of the node may enter.
  f.SayHelloAhead({NodeRank{1}, Incarnation{7}}, ConnectionId{21}, Epoch{3});
  CHECK(f.IsHeld(ConnectionId{21}));
  SECTION("It is refused in the next views, too") {
    f.NextEpoch();
    CHECK_FALSE(f.sessions.WhyNotAhead(gone, Epoch{4}, 0).empty());
  }
  SECTION("It is a member if a view says so") {
    f.view.members.push_back({.id = gone, .rank_count = 1});
    f.NextEpoch();
    CHECK(f.sessions.WhyNotAhead(gone, Epoch{4}, 0).empty());
  }
}

TEST_CASE("Sessions: a member that has departed and was in no view here is refused at once",
          "[aggregation]") {
  Fixture f;
  const view::MemberIdentity unseen{NodeRank{7}, Incarnation{77}};
  const view::MemberIdentity joiner{NodeRank{7}, Incarnation{78}};
  // It waits, as it could be a joiner. Then a view comes of an epoch after its departure.
  f.SayHelloAhead(unseen, ConnectionId{20}, Epoch{9});
  f.SayHelloAhead(joiner, ConnectionId{21}, Epoch{9});
  REQUIRE(f.IsHeld(ConnectionId{20}));
  f.gone = {.members = {unseen}};
  f.NextEpoch();
  f.sessions.AnswerThoseThatWaited(0, f.out);
  REQUIRE(f.Sent<wire::Welcome>().size() == 1);
  CHECK(f.Sent<wire::Welcome>()[0].first == ConnectionId{20});
  CHECK(f.Sent<wire::Welcome>()[0].second.status == wire::WelcomeStatus::kNotInView);
  CHECK(f.IsHeld(ConnectionId{21}));
  // It is not let in again, in whatever epoch.
  CHECK_FALSE(f.sessions.WhyNotAhead(unseen, Epoch{9}, 0).empty());
  CHECK(f.sessions.WhyNotAhead(joiner, Epoch{9}, 0).empty());
  f.gone = {};
  f.NextEpoch();
  CHECK_FALSE(f.sessions.WhyNotAhead(unseen, Epoch{9}, 0).empty());
  SECTION("Where the scheduler has forgotten some, nobody outside of the view is let in") {
    f.gone = {.is_everybody = true};
    f.NextEpoch();
    CHECK_FALSE(f.sessions.WhyNotAhead(joiner, Epoch{9}, 0).empty());
    CHECK(f.sessions.WhyNotAhead(f.view.members[0].id, Epoch{9}, 0).empty());
  }
}

TEST_CASE("Sessions: a member that waits for a view is refused when it departs", "[aggregation]") {
  Fixture f;
  f.SayHelloAhead(f.view.members[1].id, f.Conn(1), Epoch{5});
  REQUIRE(f.IsHeld(f.Conn(1)));
  f.view.members.pop_back();
  f.NextEpoch();
  f.sessions.CloseWhoIsOut(f.out);
  f.sessions.AnswerThoseThatWaited(0, f.out);
  REQUIRE(f.Sent<wire::Welcome>().size() == 1);
  CHECK(f.Sent<wire::Welcome>()[0].second.status == wire::WelcomeStatus::kNotInView);
}

TEST_CASE("Sessions: nobody waits for an epoch that no scheduler can have given", "[aggregation]") {
  constexpr int64_t kDayNs = int64_t{24} * 3600 * 1'000'000'000;
  constexpr int64_t kUnixNs = 1'800'000'000'000'000'000;
  Fixture f;
  const view::MemberIdentity member = f.view.members[0].id;
  const auto is_believed = [&](uint64_t epoch, int64_t now_ns = 0) {
    return f.sessions.WhyNotAhead(member, Epoch{epoch}, now_ns).empty();
  };
  CHECK(is_believed(1 + kDayNs));
  CHECK_FALSE(is_believed(2 + kDayNs));
  CHECK_FALSE(is_believed(uint64_t{1} << 60));
  // A scheduler that starts over its store gives epochs by the time of its start.
  f.config.unix_ahead_ns = kUnixNs;
  const uint64_t given = view::NumbersFrom(kUnixNs);
  CHECK(is_believed(given + kDayNs));
  CHECK_FALSE(is_believed(given + kDayNs + 1));
  CHECK(is_believed(given + kDayNs + 1, kDayNs));
  CHECK_FALSE(is_believed(uint64_t{1} << 60));
  // Its clock may be ahead. Then what it has said counts.
  f.view.epoch = Epoch{given + 9 * static_cast<uint64_t>(kDayNs)};
  f.Publish();
  CHECK(is_believed(f.view.epoch.value() + kDayNs));

  f.SayHelloAhead(member, ConnectionId{20}, Epoch{uint64_t{1} << 60});
  REQUIRE(f.Sent<wire::Welcome>().size() == 1);
  CHECK(f.Sent<wire::Welcome>()[0].second.text.find("cannot be right") != std::string::npos);
}

TEST_CASE("Sessions: whoever no view here names waits for a while", "[aggregation]") {
  Fixture f;
  const int64_t hold_ns = f.config.ahead_hold_ns;
  const view::MemberIdentity joiner{NodeRank{2}, Incarnation{102}};
  f.SayHelloAhead(joiner, ConnectionId{20}, Epoch{3}, 100);
  f.SayHelloAhead(f.view.members[0].id, ConnectionId{30}, Epoch{3}, 100);
  // Another view does not lengthen the wait.
  f.NextEpoch();
  f.sessions.AnswerThoseThatWaited(100 + hold_ns - 1, f.out);
  f.sessions.OnTick(100 + hold_ns - 1, f.out);
  CHECK(f.IsHeld(ConnectionId{20}));
  CHECK(f.Sent<wire::Welcome>().empty());
  SECTION("Then it is refused, and closed") {
    f.sessions.OnTick(100 + hold_ns, f.out);
    REQUIRE(f.Sent<wire::Welcome>().size() == 1);
    CHECK(f.Sent<wire::Welcome>()[0].second.text ==
          "aggregator 'agg' has not heard of epoch 3 of job 'job' yet");
    f.sessions.OnTick(100 + hold_ns + f.config.refused_linger_ns, f.out);
    CHECK(f.sessions.Find(ConnectionId{20}) == nullptr);
  }
  SECTION("It is welcomed when its view comes") {
    f.view.members.push_back({.id = joiner, .rank_count = 1});
    f.NextEpoch();
    wire::Hello hello = f.HelloOf(2);
    f.sessions.OnHello(ConnectionId{21}, Epoch{3}, hello, 200, f.out);
    CHECK(f.Sent<wire::Welcome>()[0].second.status == wire::WelcomeStatus::kOk);
    f.sessions.OnTick(100 + hold_ns, f.out);
    CHECK(f.attendance.ConnectionOf(MemberIndex{2}) == ConnectionId{21});
  }
  // A member may wait for as long as it is one.
  CHECK(f.IsHeld(ConnectionId{30}));
}

TEST_CASE("Sessions: of one member, only the newest Hello waits", "[aggregation]") {
  Fixture f;
  const view::MemberIdentity joiner{NodeRank{2}, Incarnation{102}};
  f.SayHelloAhead(joiner, ConnectionId{20}, Epoch{3});
  f.SayHelloAhead({NodeRank{2}, Incarnation{103}}, ConnectionId{21}, Epoch{3});
  f.SayHelloAhead(joiner, ConnectionId{40}, Epoch{4});
  REQUIRE(f.Of<CloseConnection>().size() == 1);
  CHECK(f.Of<CloseConnection>()[0].connection == ConnectionId{20});
  f.SayHelloAhead(joiner, ConnectionId{30}, Epoch{4});  // The newer one's Hello has come first.
  CHECK(f.Of<CloseConnection>().back().connection == ConnectionId{30});
  CHECK(f.IsHeld(ConnectionId{21}));
  CHECK(f.IsHeld(ConnectionId{40}));
  CHECK(f.sessions.all().size() == 2);
}

TEST_CASE("Sessions: too many refusals end a connection", "[aggregation]") {
  Fixture f;
  f.config.refusals_max = 2;
  f.SayHello(0, f.Conn(0));
  f.sessions.OnTally(f.Conn(0), {.refused = 2, .taken_bytes = 7}, f.out);
  CHECK(f.Of<CloseConnection>().empty());
  CHECK(f.sessions.Find(f.Conn(0))->contribution_bytes == 7);
  f.sessions.OnTally(f.Conn(0), {.refused = 1}, f.out);
  CHECK(f.Of<CloseConnection>().size() == 1);
}

TEST_CASE("Sessions: a member that is refused has time to read why", "[aggregation]") {
  Fixture f;
  f.SayHello(0, f.Conn(0));
  f.sessions.RefuseAll("the job is over", 100, f.out);
  REQUIRE(f.Sent<wire::Failed>().size() == 1);
  CHECK(f.Sent<wire::Failed>()[0].second.text == "the job is over");
  CHECK_FALSE(f.attendance.ConnectionOf(MemberIndex{0}).has_value());
  f.sessions.OnTick(100 + f.config.refused_linger_ns - 1, f.out);
  CHECK(f.Of<CloseConnection>().empty());
  f.sessions.OnTick(100 + f.config.refused_linger_ns, f.out);
  CHECK(f.Of<CloseConnection>().size() == 1);
  CHECK(f.sessions.all().empty());
}

}  // namespace
}  // namespace talweg::aggregation
