// SPDX-License-Identifier: Apache-2.0

// How agent and ranks sleep and wake each other.

#include <poll.h>

#include <atomic>
#include <cstdint>

#include "libs/shm/daemon/rank_server_fixture.h"

namespace talweg::shm {
namespace {

TEST_CASE_METHOD(RankServerFixture,
                 "The doorbell: a push before the sleep forbids it, and a push after it rings") {
  RawRank rank(*this);
  rank.Join();
  rank.Declare("t");
  Settle();
  rank.Push(0, 1);
  CHECK_FALSE(server->PrepareToSleep(RankServer::Until::kPushed));
  CHECK(server->PollRings(sink) == 1);
  CHECK(rank.control().agent_line().sleep_sequence.load() % 2 == 0);
  server->PublishCompletion({.tensor = TensorIndex(0), .round = Round(1)});
  CHECK(server->PrepareToSleep(RankServer::Until::kPushed));
  CHECK(rank.control().agent_line().sleep_sequence.load() % 2 == 1);
  pollfd polled{server->WaitDescriptor(), POLLIN, 0};
  CHECK(::poll(&polled, 1, 0) == 0);
  rank.Push(0, 2);
  rank.Send({.body = Doorbell{}});
  CHECK(::poll(&polled, 1, -1) == 1);
  Settle();
  CHECK(sink.pushes.size() == 2);
  CHECK(server->counters().doorbells_received == 1);
  CHECK(rank.control().agent_line().sleep_sequence.load() % 2 == 0);
}

TEST_CASE_METHOD(RankServerFixture, "A sleep may last until somebody waits") {
  using Until = RankServer::Until;
  RawRank pusher(*this);
  pusher.Join();
  pusher.Declare("t");
  Settle();
  const auto lasts_until_awaited = [&] {
    const AgentLine& line = pusher.control().agent_line();
    return line.sleeps_until_awaited.load() == line.sleep_sequence.load();
  };
  CHECK(server->PrepareToSleep(Until::kAwaited));
  CHECK(lasts_until_awaited());
  SECTION("The sleep ends with the next poll, and the next sleep may be another kind") {
    CHECK(server->PollRings(sink) == 0);
    CHECK_FALSE(lasts_until_awaited());
    CHECK(server->PrepareToSleep(Until::kPushed));
    CHECK_FALSE(lasts_until_awaited());
  }
  SECTION("The sleep needs ranks that ring when they wait") {
    RawRank older(*this);
    older.Join(kRingsToAwaitMinor - 1);
    Settle();
    CHECK(server->PrepareToSleep(Until::kAwaited));
    CHECK_FALSE(lasts_until_awaited());
  }
  SECTION(
      "The sleep does not begin over a push, nor while a thread waits for a round or for room") {
    pusher.Push(0, 1);
    CHECK_FALSE(server->PrepareToSleep(Until::kAwaited));
    CHECK(server->PollRings(sink) == 1);
    for (std::atomic<uint32_t>* waiters :
         {&pusher.control().rank_line().waiters, &pusher.control().rank_line().push_waiters}) {
      waiters->store(1);
      CHECK(server->PrepareToSleep(Until::kAwaited));
      CHECK_FALSE(lasts_until_awaited());
      waiters->store(0);
      CHECK(server->PollRings(sink) == 0);
      CHECK(server->PrepareToSleep(Until::kAwaited));
      CHECK(lasts_until_awaited());
    }
  }
}

TEST_CASE_METHOD(RankServerFixture, "At most one Wake is under way, and none when nobody sleeps") {
  RawRank rank(*this);
  rank.Join();
  rank.Declare("a");
  rank.Declare("b");
  rank.Push(0, 1);
  rank.Push(1, 1);
  Settle();
  server->PublishCompletion({.tensor = TensorIndex(0), .round = Round(1)});
  CHECK(server->counters().wakes_sent == 0);
  rank.control().rank_line().waiters.store(1);
  server->PublishCompletion({.tensor = TensorIndex(1), .round = Round(1)});
  CHECK(server->counters().wakes_sent == 1);
  rank.Push(0, 2);
  Settle();
  server->PublishCompletion({.tensor = TensorIndex(0), .round = Round(2)});
  CHECK(server->counters().wakes_sent == 1);  // The rank has not read the first Wake.
  rank.control().rank_line().wakes_seen.store(1);
  rank.Push(0, 3);
  Settle();
  server->PublishCompletion({.tensor = TensorIndex(0), .round = Round(3)});
  CHECK(server->counters().wakes_sent == 2);
}

TEST_CASE_METHOD(RankServerFixture,
                 "A rank that names the tensor it sleeps for is not woken for others") {
  RawRank rank(*this);
  rank.Join();
  rank.Declare("a");
  rank.Declare("b");
  rank.Push(0, 1);
  rank.Push(1, 1);
  Settle();
  rank.control().rank_line().awaited.store(1 + 1);
  rank.control().rank_line().waiters.store(1);
  server->PublishCompletion({.tensor = TensorIndex(0), .round = Round(1)});
  CHECK(server->counters().wakes_sent == 0);
  server->PublishCompletion({.tensor = TensorIndex(1), .round = Round(1)});
  CHECK(server->counters().wakes_sent == 1);
}

TEST_CASE_METHOD(RankServerFixture, "A message to all ranks skips one that was disconnected") {
  RawRank rank(*this);
  rank.Join();
  CHECK(server->PrepareToSleep(RankServer::Until::kPushed));
  // The rank's memory is no longer mapped here, but the rank stays in the list until the next
  // Sweep().
  server->Disconnect(sink.connections[0], RankStatus::kJobFailed, "it is over");
  server->Beat();
  CHECK(server->PollRings(sink) == 0);
}

}  // namespace
}  // namespace talweg::shm
