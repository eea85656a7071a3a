// SPDX-License-Identifier: Apache-2.0
// Tensors that the ranks of a node sum themselves.
#include <sys/mman.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "clients/c/client_testing.h"
#include "clients/c/rank_sums_testing.h"
#include "clients/c/talweg.h"
#include "libs/shm/testing/fake_agent.h"

namespace talweg::c {
namespace {

using Catch::Matchers::Contains;
using shm::FakeAgent;

// If `streams`, clients take the node's cache as too small for their tensors while this lives. Then
// large copies and sums go around the cache.
class CacheBytes {
 public:
  explicit CacheBytes(bool streams) {
    if (streams) ::setenv("TALWEG_CACHE_BYTES", "1", 1);
  }
  ~CacheBytes() { ::unsetenv("TALWEG_CACHE_BYTES"); }
  CacheBytes(const CacheBytes&) = delete;
  CacheBytes& operator=(const CacheBytes&) = delete;
};

TEST_CASE("Ranks that sum: every rank gets the same bits, in place or not") {
  const CacheBytes cache(GENERATE(false, true));
  // The larger counts pass the sizes from which copies and sums go around the caches and are
  // shared. All have an odd end.
  const size_t count = GENERATE(size_t{1}, size_t{1001}, size_t{300'001}, size_t{1'100'003});
  constexpr uint32_t kRanks = 3;
  const TestDirectory directory;
  FakeAgent agent(SummingOptions(directory, kRanks));
  std::vector<TestClient> clients;
  std::vector<std::vector<float>> inputs(kRanks, std::vector<float>(count));
  for (uint32_t i = 0; i < kRanks; ++i) clients.emplace_back(agent.socket_path(), i);
  talweg_tensor tensor = 0;
  for (const TestClient& client : clients) {
    tensor = Declare(client, count, TALWEG_F32, TALWEG_AVERAGE);
  }
  for (talweg_round round = 1; round <= 4; ++round) {
    std::vector<float> expected(count);
    for (uint32_t i = 0; i < kRanks; ++i) {
      for (size_t k = 0; k < count; ++k) {
        inputs[i][k] = std::ldexp(static_cast<float>(i + k % 77 + round), 9 * static_cast<int>(i));
      }
    }
    for (size_t k = 0; k < count; ++k) {
      expected[k] = (inputs[0][k] + inputs[1][k] + inputs[2][k]) / 3.0f;
    }
    for (uint32_t i = 0; i < kRanks; ++i) {
      if ((round + i) % 2 == 0) {
        CHECK(Push(clients[i], tensor, inputs[i].data()) == round);
        continue;
      }
      void* own = talweg_contribution(clients[i].get(), tensor);
      std::memcpy(own, inputs[i].data(), count * sizeof(float));
      CHECK(Push(clients[i], tensor, nullptr) == round);
    }
    for (const TestClient& client : clients) {
      if (round % 2 == 0) {
        CHECK((Take<float>(client, tensor, round, count) == expected));
        continue;
      }
      REQUIRE(talweg_wait(client.get(), tensor, round, nullptr, kGenerousNs) == TALWEG_OK);
      for (int twice = 0; twice < 2; ++twice) {
        const void* data = nullptr;
        uint64_t bytes = 0;
        REQUIRE(talweg_result(client.get(), tensor, round, &data, &bytes) == TALWEG_OK);
        REQUIRE(bytes == count * sizeof(float));
        CHECK(std::memcmp(data, expected.data(), bytes) == 0);
      }
      CHECK(talweg_ranks_summed(client.get(), tensor) == kRanks);
    }
  }
}

TEST_CASE("Ranks that sum: whoever comes sums what nobody has summed yet") {
  // Three ranks share the work of a large tensor. Here they come one after the other, then all at
  // once, and one of them with two threads.
  constexpr size_t kCount = 700'003;
  constexpr uint32_t kRanks = 3;
  const TestDirectory directory;
  FakeAgent agent(SummingOptions(directory, kRanks));
  std::vector<TestClient> clients;
  for (uint32_t i = 0; i < kRanks; ++i) clients.emplace_back(agent.socket_path(), i);
  talweg_tensor tensor = 0;
  for (const TestClient& client : clients) tensor = Declare(client, kCount);
  for (talweg_round round = 1; round <= 6; ++round) {
    std::vector<int32_t> expected(kCount);
    for (uint32_t i = 0; i < kRanks; ++i) {
      std::vector<int32_t> values(kCount);
      for (size_t k = 0; k < kCount; ++k) {
        values[k] = static_cast<int32_t>((k * (i + 1)) ^ round);
        expected[k] += values[k];
      }
      CHECK(Push(clients[i], tensor, values.data()) == round);
    }
    if (round <= 3) {
      for (uint32_t i = 0; i < kRanks; ++i) {
        CHECK((Take<int32_t>(clients[(i + round) % kRanks], tensor, round, kCount) == expected));
      }
      continue;
    }
    std::vector<std::vector<int32_t>> outs(kRanks + 1, std::vector<int32_t>(kCount));
    std::vector<talweg_status> statuses(kRanks + 1, TALWEG_INTERNAL);
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i <= kRanks; ++i) {
      threads.emplace_back([&, i] {
        statuses[i] =
            talweg_wait(clients[i % kRanks].get(), tensor, round, outs[i].data(), kGenerousNs);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (uint32_t i = 0; i <= kRanks; ++i) {
      CHECK(statuses[i] == TALWEG_OK);
      CHECK((outs[i] == expected));
    }
  }
}

// Returns the buffer of the next round's contribution. A gradient that lives there is never copied.
std::span<int32_t> Next(const TestClient& client, talweg_tensor tensor) {
  return {static_cast<int32_t*>(talweg_contribution(client.get(), tensor)),
          talweg_tensor_bytes(client.get(), tensor) / sizeof(int32_t)};
}

TEST_CASE("Ranks that sum: a rank that has its result may overwrite it at once") {
  // A result that goes to the next contribution's buffer is shared there, until its rank is done.
  const CacheBytes cache(GENERATE(false, true));
  const uint32_t ranks = GENERATE(2, 3);
  constexpr size_t kCount = 700'003;
  const TestDirectory directory;
  FakeAgent agent(SummingOptions(directory, ranks));
  std::vector<TestClient> clients;
  for (uint32_t i = 0; i < ranks; ++i) clients.emplace_back(agent.socket_path(), i);
  talweg_tensor tensor = 0;
  for (const TestClient& client : clients) tensor = Declare(client, kCount);
  const auto fill = [&](uint32_t rank, talweg_round round) {
    const std::span<int32_t> data = Next(clients[rank], tensor);
    for (size_t k = 0; k < kCount; ++k) data[k] = static_cast<int32_t>(k * (rank + 1) ^ round);
  };
  // Returns whether the rank's result is right. Then overwrites it.
  const auto take = [&](uint32_t rank, talweg_round round) {
    const std::span<int32_t> data = Next(clients[rank], tensor);
    if (talweg_wait(clients[rank].get(), tensor, round, data.data(), kGenerousNs) != TALWEG_OK) {
      return false;
    }
    bool right = true;
    for (size_t k = 0; k < kCount; ++k) {
      int32_t sum = 0;
      for (uint32_t i = 0; i < ranks; ++i) sum += static_cast<int32_t>(k * (i + 1) ^ round);
      right = right && data[k] == sum;
      data[k] = -1;
    }
    return right;
  };
  talweg_round round = 1;
  SECTION("The ranks take their results one after the other") {
    for (; round <= 3; ++round) {
      for (uint32_t i = 0; i < ranks; ++i) fill(i, round);
      for (uint32_t i = 0; i < ranks; ++i) CHECK(Push(clients[i], tensor, nullptr) == round);
      for (uint32_t i = 0; i < ranks; ++i) CHECK(take((i + round) % ranks, round));
    }
  }
  SECTION("The ranks take them at the same time, and one of them copies its result out") {
    std::vector<std::thread> threads;
    std::vector<talweg_round> right(ranks);
    constexpr talweg_round kRounds = 40;
    for (uint32_t i = 0; i < ranks; ++i) {
      threads.emplace_back([&, i] {
        std::vector<int32_t> apart(kCount);
        for (talweg_round r = 1; r <= kRounds; ++r) {
          fill(i, r);
          talweg_round pushed = 0;
          if (talweg_push_pull(clients[i].get(), tensor, nullptr, 0, kGenerousNs, &pushed) !=
              TALWEG_OK) {
            return;
          }
          if (r % 8 == i) {
            if (talweg_wait(clients[i].get(), tensor, r, apart.data(), kGenerousNs) != TALWEG_OK) {
              return;
            }
            right[i] += apart[kCount - 1] == [&] {
              int32_t sum = 0;
              for (uint32_t k = 0; k < ranks; ++k) {
                sum += static_cast<int32_t>((kCount - 1) * (k + 1) ^ r);
              }
              return sum;
            }();
          } else if ((r + i) % 2 == 0) {
            right[i] += take(i, r);
          } else {
            // The rank does not even look at the result. It overwrites what a neighbour may be
            // copying at this moment.
            const std::span<int32_t> data = Next(clients[i], tensor);
            right[i] +=
                talweg_wait(clients[i].get(), tensor, r, data.data(), kGenerousNs) == TALWEG_OK;
            std::memset(data.data(), 0xff, data.size_bytes());
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (uint32_t i = 0; i < ranks; ++i) CHECK(right[i] == kRounds);
  }
}

TEST_CASE("Ranks that sum: a rank that is ahead leaves alone what the others still read") {
  constexpr size_t kCount = 5000;
  const TestDirectory directory;
  FakeAgent agent(SummingOptions(directory, 2));
  const TestClient slow(agent.socket_path(), 0);
  const TestClient fast(agent.socket_path(), 1);
  const talweg_tensor tensor = Declare(slow, kCount);
  REQUIRE(Declare(fast, kCount) == tensor);
  for (int32_t round = 1; round <= 3; ++round) {
    const std::vector<int32_t> slows(kCount, round), fasts(kCount, 10 * round);
    if (round == 1) Push(fast, tensor, fasts.data());
    const talweg_round number = Push(slow, tensor, slows.data());
    CHECK(
        (Take<int32_t>(fast, tensor, number, kCount) == std::vector<int32_t>(kCount, 11 * round)));
    // This is one round ahead.
    const std::vector<int32_t> next(kCount, 10 * (round + 1));
    Push(fast, tensor, next.data());
    agent.WaitUntil([&](const FakeAgent::Seen& seen) { return seen.pushes == 2 * round + 1; });
    CHECK(
        (Take<int32_t>(slow, tensor, number, kCount) == std::vector<int32_t>(kCount, 11 * round)));
  }
}

TEST_CASE("Ranks that sum: a round that fails leaves the last good one alone") {
  constexpr size_t kCount = 3000;
  const TestDirectory directory;
  FakeAgent agent(SummingOptions(directory, 2));
  const TestClient slow(agent.socket_path(), 0);
  const TestClient fast(agent.socket_path(), 1);
  const talweg_tensor tensor = Declare(slow, kCount);
  REQUIRE(Declare(fast, kCount) == tensor);
  const std::vector<int32_t> ones(kCount, 1), twos(kCount, 2), others(kCount, 100);
  Push(slow, tensor, ones.data());
  Push(fast, tensor, twos.data());
  CHECK((Take<int32_t>(fast, tensor, 1, kCount) == std::vector<int32_t>(kCount, 3)));
  for (const talweg_round round : {2u, 3u, 4u}) {
    CHECK(Push(fast, tensor, others.data()) == round);
    agent.WaitUntil(
        [&](const FakeAgent::Seen& seen) { return seen.pushes == static_cast<int>(round) + 1; });
    agent.AbortRound("t", shm::RankStatus::kMismatch, "it is poisoned");
    CHECK(talweg_wait(fast.get(), tensor, round, nullptr, kGenerousNs) == TALWEG_MISMATCH);
  }
  // The buffer of rounds 1, 3 and 5 holds what the slow rank may be summing all the while.
  const auto* odd = static_cast<const int32_t*>(talweg_contribution(fast.get(), tensor));
  CHECK((std::vector<int32_t>(odd, odd + kCount) == twos));
}

TEST_CASE("Ranks that sum: broadcasts and barriers work, even with a rank that has left") {
  const TestDirectory directory;
  FakeAgent agent(SummingOptions(directory, 2));
  TestClient zero(agent.socket_path(), 0);
  const TestClient one(agent.socket_path(), 1);
  std::string error;
  std::thread other([&] {
    std::vector<float> data(1000, 5.0f);
    if (talweg_broadcast(one.get(), "b", data.data(), 1000, TALWEG_F32, 1, kGenerousNs) !=
            TALWEG_OK ||
        talweg_barrier(one.get(), nullptr, kGenerousNs) != TALWEG_OK) {
      error = talweg_last_error();
    }
  });
  std::vector<float> data(1000);
  CHECK(talweg_broadcast(zero.get(), "b", data.data(), 1000, TALWEG_F32, 1, kGenerousNs) ==
        TALWEG_OK);
  CHECK(data == std::vector<float>(1000, 5.0f));
  CHECK(talweg_barrier(zero.get(), nullptr, kGenerousNs) == TALWEG_OK);
  other.join();
  CHECK(error == "");

  // A rank pushes its last round, says goodbye and is gone before the other looks.
  const talweg_tensor tensor = Declare(zero, 9, TALWEG_I32, TALWEG_SUM, 0, "last");
  REQUIRE(Declare(one, 9, TALWEG_I32, TALWEG_SUM, 0, "last") == tensor);
  const std::vector<int32_t> values(9, 21);
  Push(zero, tensor, values.data());
  Push(one, tensor, values.data());
  talweg_client* leaver = zero.Release();
  REQUIRE(talweg_wait(leaver, tensor, 1, nullptr, kGenerousNs) == TALWEG_OK);
  CHECK(talweg_shutdown(leaver, kGenerousNs) == TALWEG_OK);
  talweg_free(leaver);
  CHECK((Take<int32_t>(one, tensor, 1, 9) == std::vector<int32_t>(9, 42)));
}

TEST_CASE("Ranks that sum: a result does not overwrite what others read") {
  const TestDirectory directory;
  FakeAgent agent(SummingOptions(directory, 2));
  const TestClient zero(agent.socket_path(), 0);
  const TestClient one(agent.socket_path(), 1);
  const talweg_tensor tensor = Declare(zero, 100);
  REQUIRE(Declare(one, 100) == tensor);
  const std::vector<int32_t> values(100, 4);
  auto* own = static_cast<int32_t*>(talweg_contribution(zero.get(), tensor));
  std::memcpy(own, values.data(), 400);
  Push(zero, tensor, nullptr);
  Push(one, tensor, values.data());
  CHECK(talweg_wait(zero.get(), tensor, 1, own + 1, kGenerousNs) == TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains("'t'") && Contains("another buffer"));
  CHECK((Take<int32_t>(one, tensor, 1, 100) == std::vector<int32_t>(100, 8)));
  // The next round has another buffer, which nobody reads yet.
  auto* next = static_cast<int32_t*>(talweg_contribution(zero.get(), tensor));
  CHECK(next != own);
  std::memcpy(next, values.data(), 400);
  Push(zero, tensor, nullptr);
  Push(one, tensor, values.data());
  CHECK((Take<int32_t>(zero, tensor, 2, 100) == std::vector<int32_t>(100, 8)));
  CHECK(talweg_wait(one.get(), tensor, 2, nullptr, kGenerousNs) == TALWEG_OK);
  CHECK(talweg_contribution(zero.get(), tensor) == own);
  // A result may go to the buffer of the next round's contribution.
  for (const talweg_round round : {3u, 4u, 5u}) {
    Push(zero, tensor, nullptr);
    Push(one, tensor, std::vector<int32_t>(100, 0).data());
    void* after = talweg_contribution(zero.get(), tensor);
    REQUIRE(talweg_wait(zero.get(), tensor, round, after, kGenerousNs) == TALWEG_OK);
    CHECK((Take<int32_t>(one, tensor, round, 100) == values));
  }
}

// The agent's sleep has no time limit here: if a doorbell is missing, the test hangs.
TEST_CASE("Ranks that sum: pushes wake nobody, and a rank that waits or polls does") {
  const TestDirectory directory;
  FakeAgent::Options options = SummingOptions(directory, 2);
  options.server.ring_capacity = 4;
  FakeAgent agent(std::move(options));
  const TestClient zero(agent.socket_path(), 0);
  const TestClient one(agent.socket_path(), 1);
  const std::vector<int32_t> values(1, 7);
  const std::vector<int32_t> sums(1, 14);
  constexpr size_t kTensors = 10;
  std::vector<talweg_tensor> tensors(kTensors);
  for (const TestClient* client : {&zero, &one}) {
    for (size_t i = 0; i < kTensors; ++i) {
      const std::string name = "t" + std::to_string(i);
      tensors[i] = Declare(*client, 1, TALWEG_I32, TALWEG_SUM, 0, name.c_str());
    }
  }
  SECTION("Pushes that fill less than half of the ring ring no bell") {
    const uint64_t before = agent.seen().counters.doorbells_received;
    Push(zero, tensors[0], values.data());
    Push(one, tensors[0], values.data());
    CHECK(agent.seen().counters.doorbells_received == before);
    CHECK((Take<int32_t>(zero, tensors[0], 1, 1) == sums));
    CHECK((Take<int32_t>(one, tensors[0], 1, 1) == sums));
  }
  SECTION("A rank that finds the ring full waits for room") {
    for (const talweg_tensor tensor : tensors) Push(zero, tensor, values.data());
    for (const talweg_tensor tensor : tensors) Push(one, tensor, values.data());
    for (const talweg_tensor tensor : tensors) {
      CHECK((Take<int32_t>(zero, tensor, 1, 1) == sums));
    }
  }
  SECTION("A rank that only polls sees the round complete") {
    Push(zero, tensors[0], values.data());
    CHECK(talweg_poll(zero.get(), tensors[0], 1) == TALWEG_PENDING);
    Push(one, tensors[0], values.data());
    talweg_status status = TALWEG_PENDING;
    while (status == TALWEG_PENDING) status = talweg_poll(zero.get(), tensors[0], 1);
    CHECK(status == TALWEG_OK);
  }
  SECTION("A rank that waits hears of a push by one that never waits") {
    for (talweg_round round = 1; round <= 2000; ++round) {
      talweg_status pushed = TALWEG_OK;
      std::thread other([&] {
        if (round % 2 == 0) std::this_thread::yield();
        talweg_round ignored = 0;
        pushed = talweg_push_pull(one.get(), tensors[0], values.data(), TALWEG_DECLARED_PRIORITY,
                                  kGenerousNs, &ignored);
      });
      Push(zero, tensors[0], values.data());
      const std::vector<int32_t> taken = Take<int32_t>(zero, tensors[0], round, 1);
      other.join();
      REQUIRE(pushed == TALWEG_OK);
      REQUIRE((taken == sums));
      REQUIRE((Take<int32_t>(one, tensors[0], round, 1) == sums));
    }
  }
}

TEST_CASE("Ranks that sum: large buffers lie where huge pages can back them") {
  constexpr uintptr_t kHugePageBytes = uintptr_t{2} << 20;
  const TestDirectory directory;
  FakeAgent agent(SummingOptions(directory, 2));
  const TestClient zero(agent.socket_path(), 0);
  const TestClient one(agent.socket_path(), 1);
  const size_t count = 2 * kHugePageBytes / sizeof(int32_t);
  for (const TestClient* client : {&zero, &one}) {
    const talweg_tensor tensor = Declare(*client, count);
    CHECK(reinterpret_cast<uintptr_t>(Next(*client, tensor).data()) % kHugePageBytes == 0);
  }
}

TEST_CASE("Ranks that sum: many tensors work, even larger ones than an arena's part") {
  const TestDirectory directory;
  FakeAgent::Options options = SummingOptions(directory, 2);
  options.server.segment_bytes_min = 64 * 1024;
  options.server.contribution_bytes_max = 8 << 20;
  FakeAgent agent(std::move(options));
  const TestClient zero(agent.socket_path(), 0);
  const TestClient one(agent.socket_path(), 1);
  const std::vector<uint64_t> counts = {1, 9000, 3, 200'000, 20'000, 400'000};
  std::vector<talweg_tensor> tensors(counts.size());
  // The ranks declare in opposite orders, and the arenas are cut alike all the same.
  for (size_t i = 0; i < counts.size(); ++i) {
    const std::string name = "t" + std::to_string(i);
    tensors[i] = Declare(zero, counts[i], TALWEG_I32, TALWEG_SUM, 0, name.c_str());
  }
  for (size_t i = counts.size(); i-- > 0;) {
    const std::string name = "t" + std::to_string(i);
    CHECK(Declare(one, counts[i], TALWEG_I32, TALWEG_SUM, 0, name.c_str()) == tensors[i]);
  }
  for (int32_t round = 1; round <= 2; ++round) {
    for (size_t i = 0; i < counts.size(); ++i) {
      const auto value = static_cast<int32_t>(i) + 10 * round;
      Push(zero, tensors[i], std::vector<int32_t>(counts[i], value).data());
      Push(one, tensors[i], std::vector<int32_t>(counts[i], 1000 * value).data());
    }
    for (size_t i = 0; i < counts.size(); ++i) {
      const auto value = static_cast<int32_t>(i) + 10 * round;
      const std::vector<int32_t> expected(counts[i], 1001 * value);
      CHECK((Take<int32_t>(one, tensors[i], static_cast<talweg_round>(round), counts[i]) ==
             expected));
      CHECK((Take<int32_t>(zero, tensors[i], static_cast<talweg_round>(round), counts[i]) ==
             expected));
    }
  }
  talweg_tensor none = 0;
  CHECK(talweg_declare(zero.get(), "big", TALWEG_I32, TALWEG_SUM, 0, 1 << 20, 0, kGenerousNs,
                       &none) == TALWEG_OUT_OF_MEMORY);
  CHECK_THAT(talweg_last_error(), Contains("8 MiB") && Contains("arena_bytes_max"));
}

}  // namespace
}  // namespace talweg::c
