// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/daemon/connections.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <list>
#include <string>

#include <catch2/catch.hpp>

namespace talweg::shm {
namespace {

// Records which ranks are gone.
class GoneSink final : public RankEventSink {
 public:
  void OnRankHello(RankConnectionId /*connection*/, const RankHello& /*hello*/) override {}
  void OnRankDeclare(RankConnectionId /*connection*/, RequestId /*request*/,
                     const RankDeclaration& /*declaration*/) override {}
  void OnRankPush(RankConnectionId /*connection*/, const PushedRound& /*push*/) override {}
  void OnRankGone(RankConnectionId /*connection*/, const RankGone& rank) override {
    gone.push_back(rank);
  }

  std::vector<RankGone> gone;
};

struct ConnectionsFixture {
  // Connects a rank of another process. The rank's end of the socket stays open.
  Connection& Add() {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0);
    peers.emplace_back(ends[1]);
    connections.Add({.socket = Descriptor(ends[0]), .uid = ::geteuid()});
    return *connections.all().rbegin()->second;
  }
  // Connects a rank, and welcomes it at any local rank.
  Connection& Join() {
    Connection& connection = Add();
    REQUIRE(connections.TakeLocalRank(connection, kAnyLocalRank));
    connections.Activate(connection, RankControl::Create({4, 4}, {}).value());
    return connection;
  }

  RankServerConfig config{.local_rank_count = 2};
  RankServerCounters counters;
  Descriptor epoll{::epoll_create1(EPOLL_CLOEXEC)};
  std::list<Descriptor> peers;
  Connections connections{&config, epoll.get(), &counters};
  GoneSink sink;
};

TEST_CASE_METHOD(ConnectionsFixture, "Connections: a local rank has one holder at a time") {
  Connection& first = Add();
  REQUIRE(connections.TakeLocalRank(first, 1));
  CHECK(first.state == Connection::State::kAsking);
  Connection& second = Add();
  CHECK_FALSE(connections.TakeLocalRank(second, 1));
  CHECK(second.over());
  Connection& third = Add();
  REQUIRE(connections.TakeLocalRank(third, kAnyLocalRank));
  CHECK(third.local_rank == LocalRank(0));
  Connection& fourth = Add();
  CHECK_FALSE(connections.TakeLocalRank(fourth, kAnyLocalRank));
  Connection& fifth = Add();
  CHECK_FALSE(connections.TakeLocalRank(fifth, 2));
  CHECK(counters.ranks_refused == 3);

  connections.Fail(first, RankStatus::kClosed, "it is over");
  Connection& sixth = Add();
  CHECK(connections.TakeLocalRank(sixth, 1));
}

TEST_CASE_METHOD(ConnectionsFixture, "Connections: memory is kept until it is released") {
  Connection& connection = Join();
  const RankConnectionId id = connection.id;
  connections.Release(id);  // This has no effect while it is alive.
  connections.Close(connection);
  CHECK_FALSE(connection.control);
  connections.Sweep();
  CHECK(connections.active().empty());
  CHECK(connections.Find(id) != nullptr);
  CHECK(connections.FindOpen(id) == nullptr);
  connections.Release(id);
  connections.Sweep();
  CHECK(connections.Find(id) == nullptr);
}

TEST_CASE_METHOD(ConnectionsFixture,
                 "Connections: the oldest connection that says no hello makes room") {
  Connection& oldest = Add();
  for (int i = 0; i < 63; ++i) Add();
  CHECK_FALSE(oldest.over());
  Add();
  CHECK(oldest.over());
  CHECK(counters.ranks_refused == 1);
}

TEST_CASE_METHOD(ConnectionsFixture,
                 "Connections: garbage and a goodbye each end a rank, and each is reported") {
  Connection& first = Join();
  Connection& second = Join();
  connections.Garbage(first, "noise", sink);
  connections.SayGoodbye(second, sink);
  CHECK(first.over());
  CHECK(second.over());
  REQUIRE(sink.gone.size() == 2);
  CHECK_FALSE(sink.gone[0].clean);
  CHECK(sink.gone[0].text.ends_with("it sent what makes no sense: noise"));
  CHECK(sink.gone[1].clean);
  CHECK(counters.protocol_errors == 1);
  CHECK(counters.ranks_gone_unclean == 1);
}

TEST_CASE_METHOD(ConnectionsFixture, "Connections: a failed job refuses ranks that ask") {
  Connection& active = Join();
  Connection& asking = Add();
  REQUIRE(connections.TakeLocalRank(asking, kAnyLocalRank));
  connections.FailAll(RankStatus::kJobFailed, "node 1 has died");
  connections.FailAll(RankStatus::kJobFailed, "another");
  CHECK(asking.over());
  CHECK(active.is_active());
  REQUIRE(connections.job_failure());
  CHECK(connections.job_failure()->text == "node 1 has died");
}

}  // namespace
}  // namespace talweg::shm
