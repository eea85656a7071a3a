// SPDX-License-Identifier: Apache-2.0

// Rounds that the ranks of a node see complete before their agent does (docs/shared_memory.md).

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "clients/c/client_testing.h"
#include "clients/c/in_place_testing.h"
#include "clients/c/rank_sums_testing.h"
#include "clients/c/talweg.h"
#include "libs/shm/layout/rank_sums.h"
#include "libs/shm/testing/fake_agent.h"

namespace talweg::c {
namespace {

using Catch::Matchers::Contains;
using shm::FakeAgent;

talweg_tensor DeclareOne(const TestClient& client, const std::string& name, uint64_t count,
                         bool in_place) {
  const talweg_declaration declaration{name.c_str(), TALWEG_I32, TALWEG_SUM, 0, 0, count};
  talweg_tensor tensor = 0;
  const auto declare_all = in_place ? talweg_declare_all_in_place : talweg_declare_all;
  const talweg_status status = declare_all(client.get(), &declaration, 1, kGenerousNs, &tensor);
  INFO(talweg_last_error());
  REQUIRE(status == TALWEG_OK);
  return tensor;
}

// A node whose ranks have done a round of a tensor "t". So they know each other's memory.
struct AcquaintedNode {
  AcquaintedNode(uint32_t ranks, uint64_t count, bool in_place, uint32_t ring_capacity = 4096)
      : agent([&] {
          FakeAgent::Options options = SummingOptions(directory, ranks);
          options.server.ring_capacity = ring_capacity;
          return options;
        }()) {
    for (uint32_t i = 0; i < ranks; ++i) clients.emplace_back(agent.socket_path(), i);
    for (const TestClient& client : clients) tensor = DeclareOne(client, "t", count, in_place);
    Round(tensor, count);
  }

  // All ranks push, then all ranks wait. Rank i contributes i + round, plus one for each further
  // element.
  void Round(talweg_tensor of, uint64_t count) {
    talweg_round round = 0;
    for (size_t i = 0; i < clients.size(); ++i) {
      std::vector<int32_t> values(count);
      std::iota(values.begin(), values.end(), static_cast<int32_t>(i + rounds));
      round = Push(clients[i], of, values.data());
    }
    const auto ranks = static_cast<int32_t>(clients.size());
    for (const TestClient& client : clients) {
      const std::vector<int32_t> sum = Take<int32_t>(client, of, round, count);
      const int32_t first = ranks * (ranks - 1) / 2 + ranks * static_cast<int32_t>(rounds);
      for (size_t k = 0; k < count; ++k) {
        if (sum[k] != first + ranks * static_cast<int32_t>(k)) {
          FAIL("element " << k << " of round " << round << " is " << sum[k]);
        }
      }
      CHECK(talweg_ranks_summed(client.get(), of) == clients.size());
    }
    ++rounds;
  }

  TestDirectory directory;
  FakeAgent agent;
  std::vector<TestClient> clients;
  talweg_tensor tensor = 0;
  size_t rounds = 0;
};

TEST_CASE("Ranks go on while the agent does not, and the agent catches up") {
  const uint32_t ranks = GENERATE(1u, 2u, 3u);
  const uint64_t count = GENERATE(1u, 5000u, 400'000u);
  const bool in_place = GENERATE(false, true);
  CAPTURE(ranks, count, in_place);
  AcquaintedNode node(ranks, count, in_place);
  node.agent.WaitUntil([&](const FakeAgent::Seen& seen) { return seen.pushes == int(ranks); });
  node.agent.Pause();
  constexpr int kRounds = 9;
  for (int i = 0; i < kRounds; ++i) node.Round(node.tensor, count);
  CHECK(node.agent.seen().pushes == static_cast<int>(ranks));
  node.agent.Resume();
  node.agent.WaitUntil(
      [&](const FakeAgent::Seen& seen) { return seen.counters.completions == 1 + kRounds; });
  CHECK(node.agent.seen().counters.pushes == (1 + kRounds) * ranks);
  CHECK(node.agent.seen().counters.protocol_errors == 0);
  node.Round(node.tensor, count);
}

TEST_CASE("A tensor's first round needs no agent if the ranks have used another tensor") {
  AcquaintedNode node(2, 100, false);
  talweg_tensor other = 0;
  for (const TestClient& client : node.clients) other = DeclareOne(client, "other", 7, false);
  node.agent.Pause();
  node.Round(other, 7);
  CHECK(talweg_poll(node.clients[0].get(), other, 1) == TALWEG_OK);
  Push(node.clients[0], other, std::vector<int32_t>(7).data());
  CHECK(talweg_poll(node.clients[0].get(), other, 2) == TALWEG_PENDING);
  Push(node.clients[1], other, std::vector<int32_t>(7).data());
  CHECK(talweg_poll(node.clients[0].get(), other, 2) == TALWEG_OK);
  node.agent.Resume();
}

TEST_CASE("Nobody rings for rounds that nobody sleeps for, until a ring is half full") {
  AcquaintedNode node(2, 10, true, 64);
  node.agent.WaitUntil([](const FakeAgent::Seen& seen) { return seen.pushes == 2; });
  const uint64_t before = node.agent.seen().counters.doorbells_received;
  for (int i = 0; i < 31; ++i) node.Round(node.tensor, 10);
  // seen() makes the agent look at its rings, because no bell does.
  CHECK(node.agent.seen().counters.doorbells_received == before);
  node.agent.WaitUntil([](const FakeAgent::Seen& seen) { return seen.pushes == 64; });
  // An agent that is still awake needs no bell: then it comes the next time.
  for (int tries = 0; node.agent.seen().counters.doorbells_received == before; ++tries) {
    REQUIRE(tries < 1000);
    for (int i = 0; i < 40; ++i) node.Round(node.tensor, 10);
  }
  for (int i = 0; i < 1000; ++i) node.Round(node.tensor, 10);
}

TEST_CASE("A ring that nobody empties fills up, and goes on when somebody empties it") {
  AcquaintedNode node(2, 10, false, 4);
  node.agent.WaitUntil([](const FakeAgent::Seen& seen) { return seen.pushes == 2; });
  node.agent.Pause();
  for (int i = 0; i < 4; ++i) node.Round(node.tensor, 10);
  talweg_round round = 0;
  CHECK(talweg_push_pull(node.clients[0].get(), node.tensor, std::vector<int32_t>(10).data(),
                         TALWEG_DECLARED_PRIORITY, 1'000'000, &round) == TALWEG_TIMEOUT);
  CHECK_THAT(talweg_last_error(), Contains("has not taken the 4 pushes"));
  node.agent.Resume();
  for (int i = 0; i < 20; ++i) node.Round(node.tensor, 10);
}

// Makes the rank look like one with an older client, which does not announce its pushes.
void Silence(const TestClient& client, talweg_tensor tensor, uint32_t ranks) {
  const std::span<char> buffer = Buffer<char>(client, tensor);
  const shm::RankSumShape shape = InPlaceShape(buffer.size(), ranks);
  reinterpret_cast<shm::PushedLine*>(buffer.data() + shape.pushed_offset())->round = 0;
}

TEST_CASE("The agent reports the pushes of a rank that does not, even to a rank that only polls") {
  AcquaintedNode node(2, 10, true);
  const TestClient& zero = node.clients[0];
  const TestClient& one = node.clients[1];
  for (talweg_round round = 2; round <= 9; ++round) {
    node.agent.WaitUntil([&](const FakeAgent::Seen& seen) {
      return seen.pushes == 2 * static_cast<int>(round - 1);
    });
    for (const TestClient* client : {&zero, &one}) {
      Push(*client, node.tensor, std::vector<int32_t>(10, 3).data());
    }
    Silence(one, node.tensor, 2);
    talweg_status status = TALWEG_PENDING;
    while (status == TALWEG_PENDING || status == TALWEG_TIMEOUT) {
      status = round % 2 == 0 ? talweg_poll(zero.get(), node.tensor, round)
                              : talweg_wait(zero.get(), node.tensor, round, nullptr, 1000);
    }
    CHECK(status == TALWEG_OK);
    CHECK((Take<int32_t>(zero, node.tensor, round, 10) == std::vector<int32_t>(10, 6)));
    CHECK((Take<int32_t>(one, node.tensor, round, 10) == std::vector<int32_t>(10, 6)));
  }
}

TEST_CASE("Ranks that do not need the agent learn that it is gone") {
  TestDirectory directory;
  auto agent = std::make_unique<FakeAgent>(SummingOptions(directory, 2));
  const TestClient zero(agent->socket_path(), 0);
  const TestClient one(agent->socket_path(), 1);
  talweg_tensor tensor = 0;
  for (const TestClient* client : {&zero, &one}) tensor = Declare(*client, 3);
  const std::vector<int32_t> values(3, 4);
  const auto round = [&](const TestClient& client) {
    talweg_round number = 0;
    return talweg_push_pull(client.get(), tensor, values.data(), TALWEG_DECLARED_PRIORITY,
                            kGenerousNs, &number);
  };
  for (talweg_round number = 1; number <= 10; ++number) {
    REQUIRE(round(zero) == TALWEG_OK);
    REQUIRE(round(one) == TALWEG_OK);
    CHECK((Take<int32_t>(zero, tensor, number, 3) == std::vector<int32_t>(3, 8)));
    CHECK((Take<int32_t>(one, tensor, number, 3) == std::vector<int32_t>(3, 8)));
  }
  agent.reset();
  talweg_status status = TALWEG_OK;
  for (talweg_round number = 11; status == TALWEG_OK && number < 4000; ++number) {
    status = round(zero);
    if (status != TALWEG_OK || (status = round(one)) != TALWEG_OK) break;
    // The round is complete, whoever has gone.
    REQUIRE((Take<int32_t>(zero, tensor, number, 3) == std::vector<int32_t>(3, 8)));
    REQUIRE((Take<int32_t>(one, tensor, number, 3) == std::vector<int32_t>(3, 8)));
  }
  CHECK(status == TALWEG_AGENT_LOST);
}

TEST_CASE(
    "A round that all have pushed ends well though the job has failed, and the next is refused") {
  AcquaintedNode node(2, 5, true);
  const std::vector<int32_t> values(5, 1);
  for (const TestClient& client : node.clients) Push(client, node.tensor, values.data());
  node.agent.FailAll(shm::RankStatus::kJobFailed, "node 7 is gone");
  for (const TestClient& client : node.clients) {
    CHECK((Take<int32_t>(client, node.tensor, 2, 5) == std::vector<int32_t>(5, 2)));
    talweg_round round = 0;
    CHECK(talweg_push_pull(client.get(), node.tensor, values.data(), TALWEG_DECLARED_PRIORITY,
                           kGenerousNs, &round) == TALWEG_JOB_FAILED);
    CHECK_THAT(talweg_last_error(), Contains("node 7 is gone"));
  }
}

TEST_CASE("A round that the agent has ended is over for a late rank, whatever the ranks see") {
  AcquaintedNode node(2, 5, false);
  const std::vector<int32_t> values(5, 1);
  Push(node.clients[0], node.tensor, values.data());
  node.agent.WaitUntil([](const FakeAgent::Seen&) { return true; });
  node.agent.AbortRound("t", shm::RankStatus::kAborted, "for the test");
  Push(node.clients[1], node.tensor, values.data());
  for (const TestClient& client : node.clients) {
    std::vector<int32_t> out(5);
    CHECK(talweg_wait(client.get(), node.tensor, 2, out.data(), kGenerousNs) == TALWEG_ABORTED);
    CHECK_THAT(talweg_last_error(), Contains("for the test"));
  }
  // From then on the ranks do not announce their pushes, and only the agent knows how the round
  // ends.
  node.agent.HoldRounds();
  for (const TestClient& client : node.clients) Push(client, node.tensor, values.data());
  for (const TestClient& client : node.clients) {
    CHECK(talweg_poll(client.get(), node.tensor, 3) == TALWEG_PENDING);
  }
  node.agent.ReleaseRounds();
  for (const TestClient& client : node.clients) {
    CHECK(talweg_wait(client.get(), node.tensor, 3, nullptr, kGenerousNs) == TALWEG_OK);
  }
}

// One rank's part of a run. Only the rounds keep the ranks in step.
class Walk {
 public:
  Walk(const TestClient& client, std::vector<talweg_tensor> tensors, uint32_t ranks, uint64_t count)
      : client_(client), tensors_(std::move(tensors)), ranks_(ranks), count_(count) {}

  std::string Run(uint64_t rounds, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<size_t> order(tensors_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    for (uint64_t round = 1; round <= rounds; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      for (const size_t i : order) {
        const std::vector<int32_t> values(count_, Value(talweg_rank(client_.get()), round, i));
        talweg_round number = 0;
        if (talweg_push_pull(client_.get(), tensors_[i], values.data(), TALWEG_DECLARED_PRIORITY,
                             kGenerousNs, &number) != TALWEG_OK) {
          return talweg_last_error();
        }
      }
      std::shuffle(order.begin(), order.end(), random);
      for (const size_t i : order) {
        for (uint32_t polls = random() % 3; polls > 0; --polls) {
          talweg_poll(client_.get(), tensors_[i], round);
        }
        if (std::string wrong = TakeOne(i, round); !wrong.empty()) return wrong;
      }
    }
    return "";
  }

 private:
  static int32_t Value(uint32_t rank, uint64_t round, size_t tensor) {
    return static_cast<int32_t>((rank + 1) * 1000 + round * 10 + tensor);
  }
  std::string TakeOne(size_t i, uint64_t round) {
    std::vector<int32_t> out(count_);
    if (talweg_wait(client_.get(), tensors_[i], round, out.data(), kGenerousNs) != TALWEG_OK) {
      return talweg_last_error();
    }
    int32_t sum = 0;
    for (uint32_t rank = 0; rank < ranks_; ++rank) sum += Value(rank, round, i);
    if (out == std::vector<int32_t>(count_, sum)) return "";
    return "tensor " + std::to_string(i) + ", round " + std::to_string(round) + " is wrong";
  }

  const TestClient& client_;
  const std::vector<talweg_tensor> tensors_;
  const uint32_t ranks_;
  const uint64_t count_;
};

TEST_CASE("Ranks push and wait in orders of their own, and each sum is right") {
  const uint32_t ranks = GENERATE(2u, 3u, 4u);
  CAPTURE(ranks);
  constexpr uint64_t kCount = 50;
  constexpr uint64_t kRounds = 400;
  TestDirectory directory;
  FakeAgent::Options options = SummingOptions(directory, ranks);
  options.server.ring_capacity = 64;
  FakeAgent agent(std::move(options));
  std::vector<TestClient> clients;
  for (uint32_t i = 0; i < ranks; ++i) clients.emplace_back(agent.socket_path(), i);
  std::vector<std::vector<talweg_tensor>> tensors(ranks);
  for (uint32_t i = 0; i < ranks; ++i) {
    for (int k = 0; k < 5; ++k) {
      tensors[i].push_back(DeclareOne(clients[i], "t" + std::to_string(k), kCount, k % 2 == 0));
    }
  }
  std::vector<std::string> errors(ranks);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < ranks; ++i) {
    threads.emplace_back(
        [&, i] { errors[i] = Walk(clients[i], tensors[i], ranks, kCount).Run(kRounds, i + 1); });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(errors == std::vector<std::string>(ranks));
  // Nobody has rung for the last rounds. The goodbyes deliver them.
  clients.clear();
  agent.WaitUntil(
      [&](const FakeAgent::Seen& seen) { return seen.gone_clean == static_cast<int>(ranks); });
  CHECK(agent.seen().counters.pushes == 5 * kRounds * ranks);
  CHECK(agent.seen().counters.protocol_errors == 0);
}

}  // namespace
}  // namespace talweg::c
