// SPDX-License-Identifier: Apache-2.0

// Early pushes: they come before the agent has completed the open round, from ranks that have
// already seen it complete (docs/shared_memory.md, "Rounds that the ranks see complete").

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "libs/shm/daemon/rank_server_fixture.h"

namespace talweg::shm {
namespace {

using Catch::Matchers::Contains;
using Pushes = std::vector<std::pair<uint32_t, uint64_t>>;

// Two ranks sum tensors "a" (0) and "b" (1).
struct SummingFixture : RankServerFixture {
  SummingFixture() {
    for (const char* name : {"a", "b"}) {
      sink.shared[name] =
          server->PlanContribution(BufferShape::Of(kOneFloat, 4), /*in_place=*/false).value();
    }
    for (RawRank& rank : ranks) {
      rank.Join();
      rank.Declare("a");
      rank.Declare("b");
    }
    Settle();
  }
  void Complete(uint32_t tensor, uint64_t round) {
    server->PublishCompletion({.tensor = TensorIndex(tensor), .round = Round(round)});
  }
  uint64_t Consumed(int rank) {
    return ranks[static_cast<size_t>(rank)].control().consumed_line().consumed.load();
  }

  std::array<RawRank, 2> ranks = {RawRank(*this), RawRank(*this)};
  RawRank& zero = ranks[0];
  RawRank& one = ranks[1];
};

TEST_CASE_METHOD(SummingFixture,
                 "An early push stays in its ring until the open round is complete") {
  for (RawRank* rank : {&zero, &one}) {
    rank->Push(0, 1);
    rank->Push(0, 2);
    rank->Push(1, 1);
  }
  Settle();
  CHECK(sink.pushes == Pushes{{0, 1}, {0, 1}});
  CHECK(Consumed(0) == 1);
  // There is work as soon as the round is complete.
  CHECK_FALSE(server->PrepareToSleep(RankServer::Until::kAwaited));
  Complete(0, 1);
  Settle();
  CHECK(sink.pushes == Pushes{{0, 1}, {0, 1}, {0, 2}, {1, 1}, {0, 2}, {1, 1}});
  CHECK(Consumed(0) == 3);
  CHECK(Consumed(1) == 3);
  CHECK(server->PrepareToSleep(RankServer::Until::kAwaited));
  CHECK(server->counters().protocol_errors == 0);
}

TEST_CASE_METHOD(SummingFixture, "A push in parts may also be early") {
  for (RawRank* rank : {&zero, &one}) {
    rank->Push(0, 1, kPushInParts, 7);
    rank->Push(0, 2, kPushInParts, 8);
  }
  Settle();
  CHECK(sink.signatures == std::vector<RoundSignature>{7, 7});
  Complete(0, 1);
  Settle();
  CHECK(sink.signatures == std::vector<RoundSignature>{7, 7, 8, 8});
  CHECK(server->counters().protocol_errors == 0);
}

TEST_CASE_METHOD(SummingFixture, "A rank may be many rounds ahead of what the agent has read") {
  for (uint64_t round = 1; round <= 4; ++round) {
    for (RawRank* rank : {&zero, &one}) {
      rank->Push(0, round);
      rank->Push(1, round);
    }
  }
  for (uint64_t round = 1; round <= 4; ++round) {
    for (uint32_t tensor = 0; tensor < 2; ++tensor) {
      Settle();
      Complete(tensor, round);
    }
  }
  Settle();
  CHECK(sink.pushes.size() == 16);
  CHECK(Consumed(0) == 8);
  CHECK(zero.control().tensor_state(1).completed_round.load() == 4);
  CHECK(server->counters().protocol_errors == 0);
}

TEST_CASE_METHOD(SummingFixture, "An early push that no honest rank can have made ends its rank") {
  SECTION("Another rank has not pushed the round") {
    zero.Push(0, 1);
    zero.Push(0, 2);
    one.Push(1, 1);
  }
  SECTION("Each of two ranks would have to come first") {
    zero.Push(0, 1);
    zero.Push(0, 2);
    zero.Push(1, 1);
    one.Push(1, 1);
    one.Push(1, 2);
    one.Push(0, 1);
  }
  SECTION("The push is for the round after the next") {
    zero.Push(0, 1);
    zero.Push(0, 3);
  }
  Settle();
  CHECK_THAT(LastWords(zero, RankStatus::kProtocol),
             Contains("tensor 0 while its round 1 is open"));
  CHECK(server->counters().protocol_errors == 1);
  REQUIRE(sink.gone.size() == 1);
  CHECK_FALSE(sink.gone[0].clean);
  CHECK(sink.gone[0].local_rank == LocalRank(0));
}

TEST_CASE_METHOD(SummingFixture, "A goodbye counts after the early pushes before it") {
  for (RawRank* rank : {&zero, &one}) {
    rank->Push(0, 1);
    rank->Push(0, 2);
  }
  zero.Send({.body = Goodbye{}});
  SECTION("The rank waits for the answer") {}
  SECTION("The rank does not wait") { zero.Close(); }
  Settle();
  CHECK(sink.gone.empty());
  Complete(0, 1);
  Settle();
  CHECK(sink.pushes == Pushes{{0, 1}, {0, 1}, {0, 2}, {0, 2}});
  REQUIRE(sink.gone.size() == 1);
  CHECK(sink.gone[0].clean);
  CHECK(sink.gone[0].local_rank == LocalRank(0));
}

TEST_CASE_METHOD(SummingFixture, "A rank that ends without a goodbye loses its early pushes") {
  zero.Push(0, 1);
  one.Push(0, 1);
  zero.Push(0, 2);
  zero.Close();
  Settle();
  REQUIRE(sink.gone.size() == 1);
  CHECK_FALSE(sink.gone[0].clean);
  CHECK(sink.pushes == Pushes{{0, 1}, {0, 1}});
}

TEST_CASE_METHOD(SummingFixture, "After the job has failed, pushes mean nothing, early or not") {
  zero.Push(0, 1);
  Settle();
  server->FailAll(RankStatus::kJobFailed, "node 1 is gone");
  zero.Push(0, 2);
  zero.Push(0, 3);
  zero.Push(1, 1);
  Settle();
  CHECK(sink.pushes == Pushes{{0, 1}});
  CHECK(sink.gone.empty());
  CHECK(Consumed(0) == 4);
  CHECK(server->PrepareToSleep(RankServer::Until::kPushed));
}

TEST_CASE_METHOD(RankServerFixture, "The agent hears of a push that comes after its round") {
  RawRank rank(*this);
  rank.Join();
  Collective patient = kOneFloat;
  patient.patience_ms = 20;
  shm::Declare declare = shm::Declare::Of(patient, "patient");
  rank.Declare(declare);
  rank.Declare("strict");
  for (const uint32_t tensor : {0U, 1U}) {
    server->PublishCompletion({.tensor = TensorIndex(tensor),
                               .round = Round(1),
                               .ranks_summed = 4,
                               .left_out = {tensor == 0}});
    rank.Push(tensor, 1);
  }
  Settle();
  // Only rounds of tensors with patience may be over because they have gone on without the rank.
  CHECK(sink.pushes == std::vector<std::pair<uint32_t, uint64_t>>{{0, 1}});
  const TensorState& state = rank.control().tensor_state(0);
  const auto good = [&](uint64_t parity) {
    return GoodRound::Of(state.good_rounds[parity].load());
  };
  CHECK(good(1).round == 1);
  CHECK(good(1).left_out);
  CHECK(good(1).ranks_summed == 4);

  server->PublishCompletion({.tensor = TensorIndex(0), .round = Round(2), .ranks_summed = 3});
  rank.Push(0, 2);
  // The rank comes to round 2 when the state is of round 3.
  server->PublishCompletion(
      {.tensor = TensorIndex(0), .round = Round(3), .status = RankStatus::kMismatch, .text = "no"});
  CHECK(state.status.load() == static_cast<uint32_t>(RankStatus::kMismatch));
  CHECK(good(0).round == 2);
  CHECK_FALSE(good(0).left_out);
  CHECK(good(0).ranks_summed == 3);
  CHECK(good(1).round == 1);  // Round 3 has no result.
}

TEST_CASE_METHOD(RankServerFixture, "No push is early where the agent sums") {
  RawRank rank(*this);
  rank.Join();
  rank.Declare("t");
  rank.Push(0, 1);
  rank.Push(0, 2);
  CHECK_THAT(LastWords(rank, RankStatus::kProtocol), Contains("while its round 1 is open"));
}

}  // namespace
}  // namespace talweg::shm
