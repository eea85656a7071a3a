// SPDX-License-Identifier: Apache-2.0
//
// Large results are copied while they arrive (docs/shared_memory.md, "Taking what has come").
#include <algorithm>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "clients/c/client_testing.h"
#include "clients/c/talweg.h"
#include "libs/base/bytes.h"
#include "libs/shm/testing/fake_agent.h"

namespace talweg::c {
namespace {

using shm::FakeAgent;

constexpr uint64_t kBytes = 4 * kMiB;
constexpr size_t kCount = kBytes / sizeof(int32_t);
constexpr int64_t kShortNs = 1'000'000;

FakeAgent::Options TellingAgent(const TestDirectory& directory, uint32_t ranks = 1) {
  FakeAgent::Options options = AgentOptions(directory, ranks);
  options.holds_rounds = true;
  options.tells_arrivals = true;
  return options;
}

// One rank with a tensor of 4 MiB. Round r contributes r, r + 1, ...
struct Rank {
  explicit Rank(const FakeAgent& agent, talweg_op op = TALWEG_SUM, uint32_t local_rank = 0)
      : client(agent.socket_path(), local_rank), gradient(kCount), out(kCount, -1) {
    REQUIRE(talweg_declare(client.get(), "w", TALWEG_I32, op, 0, kCount, 0, kGenerousNs, &tensor) ==
            TALWEG_OK);
  }
  void Push() {
    std::iota(gradient.begin(), gradient.end(), static_cast<int32_t>(round) + 1);
    REQUIRE(talweg_push_pull(client.get(), tensor, gradient.data(), 0, kGenerousNs, &round) ==
            TALWEG_OK);
  }
  talweg_status Wait(int64_t timeout_ns = kGenerousNs) {
    return talweg_wait(client.get(), tensor, round, out.data(), timeout_ns);
  }
  // Returns whether `out` and `from` are equal in this range.
  bool OutHas(uint64_t begin_bytes, uint64_t end_bytes, const std::vector<int32_t>& from) const {
    const auto begin = static_cast<ptrdiff_t>(begin_bytes / sizeof(int32_t));
    const auto end = static_cast<ptrdiff_t>(end_bytes / sizeof(int32_t));
    return std::equal(out.begin() + begin, out.begin() + end, from.begin() + begin);
  }

  TestClient client;
  talweg_tensor tensor = 0;
  talweg_round round = 0;
  std::vector<int32_t> gradient;
  std::vector<int32_t> out;
  const std::vector<int32_t> untouched = out;
};

TEST_CASE("The parts of a result that have arrived are copied before the rest is there") {
  const TestDirectory directory;
  FakeAgent agent(TellingAgent(directory));
  Rank rank(agent);
  for (int round = 0; round < 3; ++round) {
    rank.out = rank.untouched;
    rank.Push();
    agent.WaitUntil([&](const FakeAgent::Seen& seen) { return seen.pushes == round + 1; });
    agent.Arrive("w", kMiB, kMiB);
    agent.Arrive("w", 3 * kMiB, kMiB / 2);
    CHECK(rank.Wait(kShortNs) == TALWEG_TIMEOUT);
    CHECK(rank.OutHas(0, kMiB, rank.untouched));
    CHECK(rank.OutHas(kMiB, 2 * kMiB, rank.gradient));
    CHECK(rank.OutHas(2 * kMiB, 3 * kMiB, rank.untouched));
    CHECK(rank.OutHas(3 * kMiB, 3 * kMiB + kMiB / 2, rank.gradient));
    CHECK(rank.OutHas(3 * kMiB + kMiB / 2, kBytes, rank.untouched));
    agent.Arrive("w", 0, kMiB);
    agent.Arrive("w", 2 * kMiB, kMiB);
    agent.Arrive("w", 3 * kMiB + kMiB / 2, kMiB / 2);
    agent.ReleaseRounds();
    CHECK(rank.Wait() == TALWEG_OK);
    CHECK(rank.out == rank.gradient);
    agent.HoldRounds();
  }
}

TEST_CASE("A repeated wait for the same buffer keeps its copies, and a new wait starts over") {
  const TestDirectory directory;
  FakeAgent agent(TellingAgent(directory));
  Rank rank(agent);
  rank.Push();
  agent.WaitUntil([&](const FakeAgent::Seen& seen) { return seen.pushes == 1; });
  agent.Arrive("w", 0, 2 * kMiB);
  CHECK(rank.Wait(kShortNs) == TALWEG_TIMEOUT);
  // This shows what is copied from now on.
  rank.out = rank.untouched;
  agent.Arrive("w", 2 * kMiB, kMiB);
  const bool again = GENERATE(true, false);
  const auto wait = again ? talweg_wait_again : talweg_wait;
  CHECK(wait(rank.client.get(), rank.tensor, rank.round, rank.out.data(), kShortNs) ==
        TALWEG_TIMEOUT);
  CHECK(rank.OutHas(0, 2 * kMiB, again ? rank.untouched : rank.gradient));
  CHECK(rank.OutHas(2 * kMiB, 3 * kMiB, rank.gradient));
  agent.Arrive("w", 3 * kMiB, kMiB);
  agent.ReleaseRounds();
  SECTION("The rank waits for the buffer once more") {
    CHECK(wait(rank.client.get(), rank.tensor, rank.round, rank.out.data(), kGenerousNs) ==
          TALWEG_OK);
    CHECK(rank.OutHas(0, 2 * kMiB, again ? rank.untouched : rank.gradient));
    CHECK(rank.OutHas(2 * kMiB, kBytes, rank.gradient));
    talweg_statistics statistics{.struct_bytes = sizeof(talweg_statistics)};
    REQUIRE(talweg_get_statistics(rank.client.get(), &statistics) == TALWEG_OK);
    // The bytes in and out, and those that were copied twice or three times.
    CHECK(statistics.bytes_copied == 2 * kBytes + (again ? 0 : 2 * kMiB + 3 * kMiB));
  }
  SECTION("The rank waits for another buffer") {
    std::vector<int32_t> other(kCount);
    CHECK(talweg_wait_again(rank.client.get(), rank.tensor, rank.round, other.data(),
                            kGenerousNs) == TALWEG_OK);
    CHECK(other == rank.gradient);
  }
  // Nothing is kept for another round.
  agent.HoldRounds();
  rank.out = rank.untouched;
  rank.Push();
  agent.WaitUntil([&](const FakeAgent::Seen& seen) { return seen.pushes == 2; });
  agent.ReleaseRounds();
  CHECK(talweg_wait_again(rank.client.get(), rank.tensor, rank.round, rank.out.data(),
                          kGenerousNs) == TALWEG_OK);
  CHECK(rank.out == rank.gradient);
  CHECK(talweg_wait_again(nullptr, rank.tensor, rank.round, rank.out.data(), 0) ==
        TALWEG_INVALID_ARGUMENT);
}

TEST_CASE("A rank that only polls copies nothing, and loses nothing") {
  const TestDirectory directory;
  FakeAgent agent(TellingAgent(directory));
  Rank rank(agent);
  rank.Push();
  agent.WaitUntil([&](const FakeAgent::Seen& seen) { return seen.pushes == 1; });
  const auto again = [&](int64_t timeout_ns) {
    return talweg_wait_again(rank.client.get(), rank.tensor, rank.round, rank.out.data(),
                             timeout_ns);
  };
  agent.Arrive("w", 0, kMiB);
  CHECK(rank.Wait(0) == TALWEG_TIMEOUT);
  CHECK(rank.out == rank.untouched);
  CHECK(again(kShortNs) == TALWEG_TIMEOUT);
  CHECK(rank.OutHas(0, kMiB, rank.gradient));
  rank.out = rank.untouched;
  agent.Arrive("w", kMiB, kMiB);
  CHECK(again(0) == TALWEG_TIMEOUT);
  CHECK(rank.out == rank.untouched);
  CHECK(again(kShortNs) == TALWEG_TIMEOUT);
  CHECK(rank.OutHas(0, kMiB, rank.untouched));
  CHECK(rank.OutHas(kMiB, 2 * kMiB, rank.gradient));
  agent.Arrive("w", 2 * kMiB, 2 * kMiB);
  agent.ReleaseRounds();
  CHECK(again(kGenerousNs) == TALWEG_OK);
  CHECK(rank.OutHas(kMiB, kBytes, rank.gradient));
}

TEST_CASE("A rank that sleeps for a result is woken for each part that is large enough") {
  const TestDirectory directory;
  FakeAgent agent(TellingAgent(directory));
  Rank rank(agent);
  rank.Push();
  talweg_tensor other = 0;
  talweg_round other_round = 0;
  REQUIRE(talweg_declare(rank.client.get(), "other", TALWEG_I32, TALWEG_SUM, 0, kCount, 0,
                         kGenerousNs, &other) == TALWEG_OK);
  REQUIRE(talweg_push_pull(rank.client.get(), other, rank.gradient.data(), 0, kGenerousNs,
                           &other_round) == TALWEG_OK);
  agent.WaitUntil([&](const FakeAgent::Seen& seen) { return seen.pushes == 2; });
  uint64_t slept = WaitsSlept(rank.client.get());
  talweg_status status = TALWEG_INTERNAL;
  std::thread waiter([&] { status = rank.Wait(); });
  AwaitSleepers(rank.client.get(), slept++, 1);
  agent.Arrive("w", 0, kMiB / 2);
  agent.Arrive("other", 0, 2 * kMiB);
  CHECK(agent.seen().counters.wakes_sent == 0);
  agent.Arrive("w", kMiB / 2, kMiB / 2);
  CHECK(agent.seen().counters.wakes_sent == 1);
  AwaitSleepers(rank.client.get(), slept++, 1);  // The rank has copied them, and sleeps again.
  agent.Arrive("w", kMiB, 2 * kMiB);
  CHECK(agent.seen().counters.wakes_sent == 2);
  AwaitSleepers(rank.client.get(), slept, 1);
  agent.Arrive("w", 3 * kMiB, kMiB - 64);  // Now little is left, and the rank sleeps for all of it.
  CHECK(agent.seen().counters.wakes_sent == 2);
  agent.ReleaseRounds();
  waiter.join();
  CHECK(status == TALWEG_OK);
  CHECK(rank.out == rank.gradient);
}

TEST_CASE("A part that was given up and arrives again is copied again") {
  const TestDirectory directory;
  FakeAgent agent(TellingAgent(directory));
  Rank rank(agent);
  rank.Push();
  agent.WaitUntil([&](const FakeAgent::Seen& seen) { return seen.pushes == 1; });
  const uint64_t slept = WaitsSlept(rank.client.get());
  talweg_status status = TALWEG_INTERNAL;
  std::thread waiter([&] { status = rank.Wait(); });
  AwaitSleepers(rank.client.get(), slept, 1);
  // Another sum will take the place of this one.
  agent.Arrive("w", 0, 3 * kMiB, std::byte{0x5a});
  AwaitSleepers(rank.client.get(), slept, 2);
  agent.Arrive("w", 0, kBytes);
  agent.ReleaseRounds();
  waiter.join();
  CHECK(status == TALWEG_OK);
  CHECK(rank.out == rank.gradient);
}

TEST_CASE("Two threads take the parts of two tensors as they arrive") {
  const TestDirectory directory;
  FakeAgent agent(TellingAgent(directory, 2));
  Rank one(agent, TALWEG_SUM, 0);
  Rank other(agent, TALWEG_SUM, 1);
  one.Push();
  other.Push();
  agent.WaitUntil([&](const FakeAgent::Seen& seen) { return seen.pushes == 2; });
  std::vector<int32_t> second(kCount);
  talweg_status status[2] = {TALWEG_INTERNAL, TALWEG_INTERNAL};
  const uint64_t slept = WaitsSlept(one.client.get());
  std::thread first([&] { status[0] = one.Wait(); });
  // Nobody is woken early where it is not clear for whom.
  std::thread both([&] {
    status[1] = talweg_wait(one.client.get(), one.tensor, one.round, second.data(), kGenerousNs);
  });
  AwaitSleepers(one.client.get(), slept, 2);
  agent.Arrive("w", 0, 2 * kMiB);
  agent.Arrive("w", 2 * kMiB, 2 * kMiB);
  agent.ReleaseRounds();
  first.join();
  both.join();
  CHECK(status[0] == TALWEG_OK);
  CHECK(status[1] == TALWEG_OK);
  CHECK(other.Wait() == TALWEG_OK);
  std::transform(one.gradient.begin(), one.gradient.end(), one.gradient.begin(),
                 [](int32_t value) { return 2 * value; });
  CHECK(one.out == one.gradient);
  CHECK(second == one.gradient);
  CHECK(other.out == one.gradient);
}

TEST_CASE("A contribution is not overwritten before its round is complete") {
  const TestDirectory directory;
  FakeAgent agent(TellingAgent(directory));
  Rank rank(agent);
  const talweg_declaration declaration{"p", TALWEG_I32, TALWEG_PRODUCT, 0, 0, kCount};
  talweg_tensor tensor = 0;
  REQUIRE(talweg_declare_all_in_place(rank.client.get(), &declaration, 1, kGenerousNs, &tensor) ==
          TALWEG_OK);
  auto* const contribution = static_cast<int32_t*>(talweg_contribution(rank.client.get(), tensor));
  std::fill(contribution, contribution + kCount, 7);
  talweg_round round = 0;
  REQUIRE(talweg_push_pull(rank.client.get(), tensor, nullptr, 0, kGenerousNs, &round) ==
          TALWEG_OK);
  agent.WaitUntil([&](const FakeAgent::Seen& seen) { return seen.pushes == 1; });
  // The contribution may be needed again.
  agent.Arrive("p", 0, kBytes, std::byte{0x5a});
  const auto is_whole = [&] {
    return std::all_of(contribution, contribution + kCount, [](int32_t v) { return v == 7; });
  };
  CHECK(talweg_wait(rank.client.get(), tensor, round, nullptr, kShortNs) == TALWEG_TIMEOUT);
  CHECK(is_whole());
  CHECK(talweg_wait(rank.client.get(), tensor, round, contribution, kShortNs) == TALWEG_TIMEOUT);
  CHECK(is_whole());
  agent.ReleaseRounds();
  CHECK(talweg_wait(rank.client.get(), tensor, round, nullptr, kGenerousNs) == TALWEG_OK);
  CHECK(is_whole());
}

TEST_CASE("A broadcast that ends without a result leaves what was there") {
  const TestDirectory directory;
  FakeAgent agent(TellingAgent(directory));
  Rank rank(agent, TALWEG_BROADCAST);
  rank.Push();
  agent.WaitUntil([&](const FakeAgent::Seen& seen) { return seen.pushes == 1; });
  agent.Arrive("w", 0, 3 * kMiB);
  CHECK(rank.Wait(kShortNs) == TALWEG_TIMEOUT);
  agent.AbortRound("w", shm::RankStatus::kAborted, "the root is gone");
  CHECK(rank.Wait() == TALWEG_ABORTED);
  CHECK(rank.out == rank.untouched);
}

}  // namespace
}  // namespace talweg::c
