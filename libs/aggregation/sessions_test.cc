// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/sessions.h"

#include <optional>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/aggregation/core_parts_fixture.h"

namespace talweg::aggregation {
namespace {

struct Fixture : CoreParts {
  wire::Hello HelloOf(uint32_t member) const {
    return {.member = view.members[member].id,
            .rank_count = 1,
            .view_digest = present.placement_digest(),
            .job_name = "job"};
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

TEST_CASE("Sessions: too many refusals end a connection", "[aggregation]") {
  Fixture f;
  f.config.refusals_max = 2;
  f.SayHello(0, f.Conn(0));
  f.sessions.OnContributed(f.Conn(0), {.refused = 2, .taken_bytes = 7}, f.out);
  CHECK(f.Of<CloseConnection>().empty());
  CHECK(f.sessions.Find(f.Conn(0))->contribution_bytes == 7);
  f.sessions.OnContributed(f.Conn(0), {.refused = 1}, f.out);
  CHECK(f.Of<CloseConnection>().size() == 1);
}

TEST_CASE("Sessions: a member that is refused has time to read why", "[aggregation]") {
  Fixture f;
  f.SayHello(0, f.Conn(0));
  f.sessions.RefuseAll("the job is over", 100, f.out);
  REQUIRE(f.Sent<wire::Failed>().size() == 1);
  CHECK(f.Sent<wire::Failed>()[0].second.text == "the job is over");
  CHECK_FALSE(f.attendance.ConnectionOf(MemberIndex{0}).has_value());
  f.sessions.CloseRefused(100 + f.config.refused_linger_ns - 1, f.out);
  CHECK(f.Of<CloseConnection>().empty());
  f.sessions.CloseRefused(100 + f.config.refused_linger_ns, f.out);
  CHECK(f.Of<CloseConnection>().size() == 1);
  CHECK(f.sessions.all().empty());
}

}  // namespace
}  // namespace talweg::aggregation
