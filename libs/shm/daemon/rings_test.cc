// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/daemon/rings.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <list>
#include <string>
#include <utility>

#include <catch2/catch.hpp>

#include "libs/shm/mapping.h"

namespace talweg::shm {
namespace {

class PushSink final : public RankEventSink {
 public:
  void OnRankHello(RankConnectionId /*connection*/, const RankHello& /*hello*/) override {}
  void OnRankDeclare(RankConnectionId /*connection*/, RequestId /*request*/,
                     const RankDeclaration& /*declaration*/) override {}
  void OnRankPush(RankConnectionId /*connection*/, const PushedRound& push) override {
    pushes.emplace_back(push.local_rank.value(), push.round.value());
  }
  void OnRankGone(RankConnectionId /*connection*/, const RankGone& rank) override {
    gone.push_back(rank.text);
  }

  std::vector<std::pair<uint32_t, uint64_t>> pushes;  // Each is a rank and a round.
  std::vector<std::string> gone;
};

// Two ranks have declared tensor 0, which the agent sums.
struct RingsFixture {
  struct Rank {
    Connection* connection = nullptr;
    Descriptor socket;
    Mapping mapping;
    ControlView control;
    uint64_t submitted = 0;

    void Push(uint32_t tensor, uint64_t round) {
      control.ring_entry(submitted) = {.tensor = tensor, .round = round};
      control.rank_line().submitted.store(++submitted);
    }
  };

  RingsFixture() {
    for (Rank& rank : ranks) {
      std::array<int, 2> ends{};
      REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) ==
              0);
      rank.socket = Descriptor(ends[1]);
      connections.Add({.socket = Descriptor(ends[0]), .uid = ::geteuid()});
      rank.connection = connections.all().rbegin()->second.get();
      REQUIRE(connections.TakeLocalRank(*rank.connection, kAnyLocalRank));
      const ControlShape shape{4, 4};
      RankControl control = RankControl::Create(shape, {}).value();
      const Descriptor shared = control.TakeDescriptor();
      rank.mapping = Mapping::Map(shared.get(), control.bytes(), Mapping::Access::kReadWrite);
      REQUIRE(rank.mapping.valid());
      rank.control = ControlView(rank.mapping.data(), shape);
      connections.Activate(*rank.connection, std::move(control));
      rank.connection->tensors.resize(1);
      rank.connection->tensors[0].declared = true;
    }
  }
  void Complete(uint64_t round) {
    for (Rank& rank : ranks) rank.connection->tensors[0].completed = round;
  }

  RankServerConfig config{.local_rank_count = 2};
  RankServerCounters counters;
  Descriptor epoll{::epoll_create1(EPOLL_CLOEXEC)};
  Connections connections{&config, epoll.get(), &counters};
  Rings rings{&config, &connections, &counters};
  std::array<Rank, 2> ranks;
  PushSink sink;
};

TEST_CASE_METHOD(RingsFixture, "Rings: a push is delivered, and its round may be looked up") {
  ranks[0].Push(0, 1);
  CHECK(rings.Poll(sink) == 1);
  CHECK_FALSE(rings.EverybodyHasPushed(0, 1));
  ranks[1].Push(0, 1);
  CHECK(rings.Poll(sink) == 1);
  CHECK(rings.EverybodyHasPushed(0, 1));
  CHECK_FALSE(rings.EverybodyHasPushed(1, 1));
  CHECK(sink.pushes == std::vector<std::pair<uint32_t, uint64_t>>{{0, 1}, {1, 1}});
  CHECK(counters.pushes == 2);
  CHECK(rings.Poll(sink) == 0);
}

TEST_CASE_METHOD(RingsFixture, "Rings: a push that makes no sense ends its rank") {
  SECTION("The rank has not declared the tensor") { ranks[0].Push(1, 1); }
  SECTION("The round is not the next one") { ranks[0].Push(0, 2); }
  SECTION("The round before is still open") {
    ranks[0].Push(0, 1);
    ranks[0].Push(0, 2);
  }
  SECTION("The rank names more entries than the ring holds") {
    ranks[0].control.rank_line().submitted.store(5);
  }
  rings.Poll(sink);
  CHECK(sink.gone.size() == 1);
  CHECK(ranks[0].connection->over());
  CHECK(ranks[1].connection->is_active());
}

TEST_CASE_METHOD(RingsFixture, "Rings: an early push waits for the open round of ranks that sum") {
  for (Rank& rank : ranks) rank.connection->tensors[0].data.shared = SharedPlace{};
  ranks[0].Push(0, 1);
  ranks[0].Push(0, 2);
  ranks[1].Push(0, 1);
  CHECK(rings.Poll(sink) == 2);
  CHECK(rings.Poll(sink) == 0);
  CHECK(sink.gone.empty());
  Complete(1);
  CHECK(rings.Poll(sink) == 1);
  CHECK(sink.pushes.back() == std::pair<uint32_t, uint64_t>{0, 2});
}

TEST_CASE_METHOD(RingsFixture, "Rings: an early push that no other rank can complete is garbage") {
  for (Rank& rank : ranks) rank.connection->tensors[0].data.shared = SharedPlace{};
  ranks[0].Push(0, 1);
  ranks[0].Push(0, 2);
  CHECK(rings.Poll(sink) == 1);
  CHECK(rings.Poll(sink) == 0);
  CHECK(sink.gone.size() == 1);
  CHECK(ranks[0].connection->over());
}

TEST_CASE_METHOD(RingsFixture, "Rings: the agent sleeps only while all rings are empty") {
  CHECK(rings.PrepareToSleep(RankServer::Until::kPushed));
  CHECK((rings.sleep_sequence() & 1) == 1);
  ranks[1].Push(0, 1);
  CHECK_FALSE(rings.PrepareToSleep(RankServer::Until::kPushed));
  rings.Poll(sink);
  CHECK((rings.sleep_sequence() & 1) == 0);
}

TEST_CASE_METHOD(RingsFixture, "Rings: all pushes of a rank are taken at once if asked for") {
  ranks[0].Push(0, 1);
  ranks[1].Push(0, 1);
  CHECK(rings.Drain(*ranks[1].connection, sink) == 1);
  rings.DrainAll(sink);
  CHECK(sink.pushes == std::vector<std::pair<uint32_t, uint64_t>>{{1, 1}, {0, 1}});
}

}  // namespace
}  // namespace talweg::shm
