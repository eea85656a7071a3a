// SPDX-License-Identifier: Apache-2.0
#include "clients/c/talweg.h"

#include <atomic>
#include <cmath>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "clients/c/client_testing.h"
#include "libs/shm/testing/fake_agent.h"

namespace talweg::c {
namespace {

using Catch::Matchers::Contains;
using shm::FakeAgent;

// Runs `body(client, rank)` on one thread a rank, each with its own client. Only the test's thread
// may use Catch's checks: bodies return what went wrong, or "".
template <typename Body>
void OnEachRank(const FakeAgent& agent, uint32_t ranks, const Body& body) {
  std::vector<std::string> errors(ranks);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const TestClient client(agent.socket_path(), rank);
      errors[rank] =
          client.status() == TALWEG_OK ? body(client.get(), rank) : "connect: " + client.error();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) CHECK(error == "");
}

std::string Text(talweg_status status) {
  return status == TALWEG_OK ? ""
                             : std::string(talweg_status_name(status)) + ": " + talweg_last_error();
}

#define RETURN_IF_BAD(expression)                   \
  do {                                              \
    const talweg_status status_ = (expression);     \
    if (status_ != TALWEG_OK) return Text(status_); \
  } while (false)

std::string PushPull(talweg_client* client, talweg_tensor tensor, const void* in, void* out) {
  talweg_round round = 0;
  RETURN_IF_BAD(
      talweg_push_pull(client, tensor, in, TALWEG_DECLARED_PRIORITY, kGenerousNs, &round));
  RETURN_IF_BAD(talweg_wait(client, tensor, round, out, kGenerousNs));
  return "";
}

TEST_CASE("A client knows its job, rank and size") {
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, 3));
  const TestClient two(agent.socket_path(), 2);
  const TestClient any(agent.socket_path(), TALWEG_ANY_LOCAL_RANK);
  REQUIRE(two.status() == TALWEG_OK);
  REQUIRE(any.status() == TALWEG_OK);
  CHECK(talweg_rank(two.get()) == 2);
  CHECK(talweg_local_rank(two.get()) == 2);
  CHECK(talweg_size(two.get()) == 3);
  CHECK(talweg_local_size(two.get()) == 3);
  CHECK(talweg_node_rank(two.get()) == 0);
  CHECK(talweg_node_count(two.get()) == 1);
  CHECK(std::string(talweg_job_name(two.get())) == "test-job");
  CHECK(talweg_rank(any.get()) == 0);
  CHECK(talweg_health(any.get()) == TALWEG_OK);
}

TEST_CASE("Rounds of a tensor are summed, one after the other") {
  constexpr uint32_t kRanks = 3;
  constexpr size_t kCount = 1001;
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, kRanks));
  OnEachRank(agent, kRanks, [&](talweg_client* client, uint32_t rank) -> std::string {
    talweg_tensor tensor = 0;
    RETURN_IF_BAD(talweg_declare(client, "weights", TALWEG_F32, TALWEG_SUM, 0, kCount, 5,
                                 kGenerousNs, &tensor));
    std::vector<float> in(kCount), out(kCount);
    for (int round = 1; round <= 50; ++round) {
      for (size_t i = 0; i < kCount; ++i) in[i] = static_cast<float>((rank + 1) * round + i);
      if (std::string bad = PushPull(client, tensor, in.data(), out.data()); bad != "") return bad;
      for (size_t i = 0; i < kCount; ++i) {
        const float sum = static_cast<float>(6 * round + 3 * i);
        if (out[i] != sum)
          return "round " + std::to_string(round) + " element " + std::to_string(i);
      }
      if (talweg_ranks_summed(client, tensor) != kRanks) return "ranks summed";
    }
    return "";
  });
  CHECK(agent.seen().pushes == 50 * kRanks);
}

TEST_CASE("Contributions may be made in place, and results read in place") {
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, 2));
  OnEachRank(agent, 2, [&](talweg_client* client, uint32_t rank) -> std::string {
    talweg_tensor tensor = 0;
    RETURN_IF_BAD(
        talweg_declare(client, "t", TALWEG_F64, TALWEG_AVERAGE, 0, 4, 0, kGenerousNs, &tensor));
    if (talweg_tensor_bytes(client, tensor) != 32) return "bytes";
    for (int round = 1; round <= 3; ++round) {
      auto* contribution = static_cast<double*>(talweg_contribution(client, tensor));
      for (int i = 0; i < 4; ++i) contribution[i] = round * 10 + rank;
      if (std::string bad = PushPull(client, tensor, nullptr, nullptr); bad != "") return bad;
      const void* result = nullptr;
      uint64_t bytes = 0;
      RETURN_IF_BAD(
          talweg_result(client, tensor, static_cast<talweg_round>(round), &result, &bytes));
      if (bytes != 32) return "result's bytes";
      if (static_cast<const double*>(result)[3] != round * 10 + 0.5) return "result";
      if (talweg_result(client, tensor, static_cast<talweg_round>(round + 1), &result, &bytes) !=
          TALWEG_INVALID_ARGUMENT) {
        return "the result of a round to come";
      }
    }
    return "";
  });
}

TEST_CASE("A broadcast carries the root's bytes, and a barrier carries nothing") {
  constexpr uint32_t kRanks = 3;
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, kRanks));
  std::atomic<int> before{0};
  OnEachRank(agent, kRanks, [&](talweg_client* client, uint32_t rank) -> std::string {
    for (uint32_t root = 0; root < kRanks; ++root) {
      // These bit patterns are signalling NaNs, which no arithmetic would leave alone.
      std::vector<uint32_t> data(100, rank == root ? 0x7f800001u + root : rank);
      const std::string name = "b" + std::to_string(root);
      for (int again = 0; again < 3; ++again) {
        RETURN_IF_BAD(talweg_broadcast(client, name.c_str(), data.data(), data.size(), TALWEG_F32,
                                       root, kGenerousNs));
        if (data != std::vector<uint32_t>(100, 0x7f800001u + root)) return "broadcast bytes";
      }
    }
    for (int barrier = 1; barrier <= 20; ++barrier) {
      ++before;
      RETURN_IF_BAD(talweg_barrier(client, nullptr, kGenerousNs));
      if (before.load() < barrier * static_cast<int>(kRanks)) return "passed a barrier too early";
      RETURN_IF_BAD(talweg_barrier(client, "second", kGenerousNs));
    }
    return "";
  });
}

TEST_CASE(
    "Ten thousand tensors work at once, in any order, from several threads, over a small ring") {
  constexpr uint32_t kRanks = 2;
  constexpr size_t kTensors = 10'000;
  constexpr size_t kThreads = 4;
  const TestDirectory directory;
  FakeAgent::Options options = AgentOptions(directory, kRanks);
  options.server.ring_capacity = 64;
  FakeAgent agent(options);
  OnEachRank(agent, kRanks, [&](talweg_client* client, uint32_t rank) -> std::string {
    std::vector<talweg_tensor> tensors(kTensors);
    for (size_t i = 0; i < kTensors; ++i) {
      // The ranks declare in opposite orders.
      const size_t k = rank == 0 ? i : kTensors - 1 - i;
      RETURN_IF_BAD(talweg_declare(client, ("t" + std::to_string(k)).c_str(), TALWEG_I32,
                                   TALWEG_SUM, 0, 1, 0, kGenerousNs, &tensors[k]));
    }
    std::vector<std::string> errors(kThreads);
    std::vector<std::thread> threads;
    for (size_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        errors[thread] = [&]() -> std::string {
          std::vector<talweg_round> rounds(kTensors);
          for (size_t i = thread; i < kTensors; i += kThreads) {
            const size_t k = rank == 0 ? i : kTensors - 1 - i;
            const auto value = static_cast<int32_t>(k * (rank + 1));
            RETURN_IF_BAD(talweg_push_pull(client, tensors[k], &value, static_cast<int32_t>(k),
                                           kGenerousNs, &rounds[k]));
          }
          for (size_t i = thread; i < kTensors; i += kThreads) {
            const size_t k = rank == 0 ? i : kTensors - 1 - i;
            int32_t sum = 0;
            RETURN_IF_BAD(talweg_wait(client, tensors[k], rounds[k], &sum, kGenerousNs));
            if (sum != static_cast<int32_t>(3 * k)) return "sum of tensor " + std::to_string(k);
          }
          return "";
        }();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& error : errors) {
      if (!error.empty()) return error;
    }
    talweg_statistics statistics{.struct_bytes = sizeof(talweg_statistics)};
    RETURN_IF_BAD(talweg_get_statistics(client, &statistics));
    if (statistics.tensors != kTensors || statistics.pushes != kTensors) return "statistics";
    if (statistics.bytes_pushed != kTensors * 4) return "bytes pushed";
    return "";
  });
}

TEST_CASE("Several threads wait at once, for one round and for several") {
  const TestDirectory directory;
  FakeAgent::Options options = AgentOptions(directory, 1);
  options.holds_rounds = true;
  FakeAgent agent(options);
  const TestClient client(agent.socket_path(), 0);
  constexpr size_t kTensors = 4;
  std::vector<talweg_tensor> tensors(kTensors);
  std::vector<talweg_round> rounds(kTensors);
  for (size_t i = 0; i < kTensors; ++i) {
    REQUIRE(talweg_declare(client.get(), std::to_string(i).c_str(), TALWEG_I64, TALWEG_SUM, 0, 1, 0,
                           kGenerousNs, &tensors[i]) == TALWEG_OK);
    const int64_t value = static_cast<int64_t>(i) + 100;
    REQUIRE(talweg_push_pull(client.get(), tensors[i], &value, 0, kGenerousNs, &rounds[i]) ==
            TALWEG_OK);
    CHECK(talweg_poll(client.get(), tensors[i], rounds[i]) == TALWEG_PENDING);
  }
  const uint64_t slept_before = WaitsSlept(client.get());
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (size_t thread = 0; thread < 3 * kTensors; ++thread) {
    threads.emplace_back([&, thread] {
      const size_t i = thread % kTensors;
      int64_t value = 0;
      const talweg_status status =
          talweg_wait(client.get(), tensors[i], rounds[i], &value, kGenerousNs);
      if (status == TALWEG_OK && value == static_cast<int64_t>(i) + 100) ++right;
    });
  }
  // All of them sleep before anything happens. Otherwise the test would not check sleeping.
  AwaitSleepers(client.get(), slept_before, 3 * kTensors);
  agent.ReleaseRounds();
  for (std::thread& thread : threads) thread.join();
  CHECK(right == 3 * kTensors);
  CHECK(talweg_poll(client.get(), tensors[0], rounds[0]) == TALWEG_OK);
}

TEST_CASE(
    "A thread that waits for one tensor is not woken for others, nor forgotten among several") {
  const TestDirectory directory;
  FakeAgent::Options options = AgentOptions(directory, 1);
  options.holds_rounds = true;
  FakeAgent agent(options);
  const TestClient client(agent.socket_path(), 0);
  std::vector<talweg_tensor> tensors(10);
  std::vector<talweg_round> rounds(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    REQUIRE(talweg_declare(client.get(), std::to_string(i).c_str(), TALWEG_I64, TALWEG_SUM, 0, 1, 0,
                           kGenerousNs, &tensors[i]) == TALWEG_OK);
    const int64_t value = 1;
    REQUIRE(talweg_push_pull(client.get(), tensors[i], &value, 0, kGenerousNs, &rounds[i]) ==
            TALWEG_OK);
  }
  const uint64_t slept_before = WaitsSlept(client.get());
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  const auto sleep_for = [&](size_t i) {
    threads.emplace_back([&, i] {
      if (talweg_wait(client.get(), tensors[i], rounds[i], nullptr, kGenerousNs) == TALWEG_OK) {
        ++right;
      }
    });
    AwaitSleepers(client.get(), slept_before, threads.size());
  };
  sleep_for(9);
  for (int i = 0; i < 5; ++i) {
    agent.AbortRound(std::to_string(i), shm::RankStatus::kAborted, "for the test");
  }
  CHECK(agent.seen().counters.wakes_sent == 0);
  sleep_for(8);
  sleep_for(7);
  agent.AbortRound("5", shm::RankStatus::kAborted, "for the test");
  CHECK(agent.seen().counters.wakes_sent == 1);
  agent.ReleaseRounds();
  for (std::thread& thread : threads) thread.join();
  CHECK(right == 3);
}

TEST_CASE("A second push before the first is taken is an error that names the tensor") {
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, 1));
  const TestClient client(agent.socket_path(), 0);
  talweg_tensor tensor = 0;
  REQUIRE(talweg_declare(client.get(), "fc1.weight", TALWEG_F32, TALWEG_SUM, 0, 2, 0, kGenerousNs,
                         &tensor) == TALWEG_OK);
  const float data[2] = {1, 2};
  talweg_round round = 0;
  REQUIRE(talweg_push_pull(client.get(), tensor, data, 0, -1, &round) == TALWEG_OK);
  talweg_round second = 0;
  CHECK(talweg_push_pull(client.get(), tensor, data, 0, -1, &second) == TALWEG_BUSY);
  CHECK_THAT(talweg_last_error(), Contains("'fc1.weight'") && Contains("round 1"));
  CHECK(second == 0);
  float out[2];
  REQUIRE(talweg_wait(client.get(), tensor, round, out, kGenerousNs) == TALWEG_OK);
  CHECK(talweg_push_pull(client.get(), tensor, data, 0, -1, &second) == TALWEG_OK);
  CHECK(second == 2);
  CHECK(talweg_wait(client.get(), tensor, 1, out, 0) == TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains("round 1") && Contains("2"));
  CHECK(talweg_wait(client.get(), tensor, 2, out, kGenerousNs) == TALWEG_OK);
}

TEST_CASE("A timeout ends the waiting, not the round") {
  const TestDirectory directory;
  FakeAgent::Options options = AgentOptions(directory, 1);
  options.holds_rounds = true;
  FakeAgent agent(options);
  const TestClient client(agent.socket_path(), 0);
  talweg_tensor tensor = 0;
  REQUIRE(talweg_declare(client.get(), "slow", TALWEG_I32, TALWEG_SUM, 0, 1, 0, kGenerousNs,
                         &tensor) == TALWEG_OK);
  const int32_t value = 17;
  talweg_round round = 0;
  REQUIRE(talweg_push_pull(client.get(), tensor, &value, 0, -1, &round) == TALWEG_OK);
  int32_t out = 0;
  CHECK(talweg_wait(client.get(), tensor, round, &out, 0) == TALWEG_TIMEOUT);
  CHECK(talweg_wait(client.get(), tensor, round, &out, 5'000'000) == TALWEG_TIMEOUT);
  CHECK_THAT(talweg_last_error(), Contains("'slow'") && Contains("0.005"));
  CHECK(talweg_push_pull(client.get(), tensor, &value, 0, -1, &round) == TALWEG_BUSY);
  CHECK(talweg_barrier(client.get(), nullptr, 5'000'000) == TALWEG_TIMEOUT);
  CHECK(talweg_barrier(client.get(), nullptr, 5'000'000) == TALWEG_TIMEOUT);
  agent.ReleaseRounds();
  CHECK(talweg_wait(client.get(), tensor, 1, &out, kGenerousNs) == TALWEG_OK);
  CHECK(out == 17);
  CHECK(talweg_barrier(client.get(), nullptr, kGenerousNs) == TALWEG_OK);
  CHECK(agent.seen().pushes == 2);  // The barrier was pushed once.
}

TEST_CASE("A full ring is back-pressure: pushes wait, time out, and go on") {
  const TestDirectory directory;
  FakeAgent::Options options = AgentOptions(directory, 1);
  options.server.ring_capacity = 4;
  FakeAgent agent(options);
  const TestClient client(agent.socket_path(), 0);
  std::vector<talweg_tensor> tensors(6);
  for (size_t i = 0; i < tensors.size(); ++i) {
    REQUIRE(talweg_declare(client.get(), std::to_string(i).c_str(), TALWEG_I32, TALWEG_SUM, 0, 1, 0,
                           kGenerousNs, &tensors[i]) == TALWEG_OK);
  }
  agent.Pause();
  const int32_t value = 1;
  talweg_round round = 0;
  for (size_t i = 0; i < 4; ++i) {
    REQUIRE(talweg_push_pull(client.get(), tensors[i], &value, 0, 0, &round) == TALWEG_OK);
  }
  CHECK(talweg_push_pull(client.get(), tensors[4], &value, 0, 0, &round) == TALWEG_TIMEOUT);
  CHECK(talweg_push_pull(client.get(), tensors[4], &value, 0, 3'000'000, &round) == TALWEG_TIMEOUT);
  CHECK_THAT(talweg_last_error(), Contains("'4'") && Contains("4 pushes"));
  std::thread resume([&] { agent.Resume(); });
  CHECK(talweg_push_pull(client.get(), tensors[4], &value, 0, kGenerousNs, &round) == TALWEG_OK);
  CHECK(talweg_push_pull(client.get(), tensors[5], &value, 0, kGenerousNs, &round) == TALWEG_OK);
  resume.join();
  for (size_t i = 0; i < tensors.size(); ++i) {
    CHECK(talweg_wait(client.get(), tensors[i], 1, nullptr, kGenerousNs) == TALWEG_OK);
  }
}

TEST_CASE(
    "A declaration that ranks disagree on names both sides; repeating one gives the same tensor") {
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, 2));
  const TestClient zero(agent.socket_path(), 0);
  const TestClient one(agent.socket_path(), 1);
  talweg_tensor first = 77;
  talweg_tensor again = 78;
  REQUIRE(talweg_declare(zero.get(), "w", TALWEG_F32, TALWEG_SUM, 0, 100, 0, kGenerousNs, &first) ==
          TALWEG_OK);
  CHECK(talweg_declare(zero.get(), "w", TALWEG_F32, TALWEG_SUM, 0, 100, 0, kGenerousNs, &again) ==
        TALWEG_OK);
  CHECK(first == again);
  CHECK(talweg_declare(one.get(), "w", TALWEG_F32, TALWEG_SUM, 0, 200, 0, kGenerousNs, &again) ==
        TALWEG_MISMATCH);
  CHECK_THAT(talweg_last_error(),
             Contains("rank 0 declared f32[100] sum") && Contains("rank 1 declares f32[200] sum"));
}

TEST_CASE("A call that makes no sense is an error, not a crash") {
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, 1));
  const TestClient owner(agent.socket_path(), 0);
  talweg_client* client = owner.get();
  talweg_tensor tensor = 0;
  talweg_round round = 0;
  const auto declare = [&](const char* name, talweg_dtype dtype, talweg_op op, uint32_t root,
                           uint64_t count) {
    return talweg_declare(client, name, dtype, op, root, count, 0, kGenerousNs, &tensor);
  };
  CHECK(declare("", TALWEG_F32, TALWEG_SUM, 0, 1) == TALWEG_INVALID_ARGUMENT);
  CHECK(declare(nullptr, TALWEG_F32, TALWEG_SUM, 0, 1) == TALWEG_INVALID_ARGUMENT);
  CHECK(declare(std::string(2000, 'x').c_str(), TALWEG_F32, TALWEG_SUM, 0, 1) ==
        TALWEG_INVALID_ARGUMENT);
  CHECK(declare("bad \xff utf8", TALWEG_F32, TALWEG_SUM, 0, 1) == TALWEG_INVALID_ARGUMENT);
  CHECK(declare("x", static_cast<talweg_dtype>(99), TALWEG_SUM, 0, 1) == TALWEG_INVALID_ARGUMENT);
  CHECK(declare("x", static_cast<talweg_dtype>(257), TALWEG_SUM, 0, 1) == TALWEG_INVALID_ARGUMENT);
  CHECK(declare("x", TALWEG_F32, static_cast<talweg_op>(99), 0, 1) == TALWEG_INVALID_ARGUMENT);
  CHECK(declare("empty", TALWEG_F32, TALWEG_SUM, 0, 0) == TALWEG_OK);
  CHECK(declare("huge", TALWEG_F64, TALWEG_SUM, 0, UINT64_MAX / 4) == TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains("'huge'") && Contains("16 GiB"));
  CHECK(declare("mean", TALWEG_I32, TALWEG_AVERAGE, 0, 1) == TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains("average is not defined for i32"));
  CHECK(declare("root", TALWEG_F32, TALWEG_BROADCAST, 9, 1) == TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(),
             Catch::Matchers::EndsWith("root rank 9 does not exist: the job has 1 rank"));
  CHECK(declare("t\xc3\xa4nsor \xe2\x82\xac", TALWEG_F32, TALWEG_SUM, 0, 1) == TALWEG_OK);

  CHECK(talweg_push_pull(client, 12345, nullptr, 0, 0, &round) == TALWEG_INVALID_ARGUMENT);
  CHECK(talweg_wait(client, 12345, 1, nullptr, 0) == TALWEG_INVALID_ARGUMENT);
  CHECK(talweg_wait(client, tensor, 1, nullptr, 0) == TALWEG_INVALID_ARGUMENT);
  CHECK(talweg_wait(client, tensor, 0, nullptr, 0) == TALWEG_INVALID_ARGUMENT);
  CHECK(talweg_poll(client, tensor, 1) == TALWEG_INVALID_ARGUMENT);
  CHECK(talweg_contribution(client, UINT32_MAX) == nullptr);
  CHECK(talweg_tensor_bytes(client, UINT32_MAX) == 0);
  CHECK(talweg_push_pull(nullptr, 0, nullptr, 0, 0, &round) == TALWEG_INVALID_ARGUMENT);
  CHECK(talweg_rank(nullptr) == 0);
  talweg_free(nullptr);
}

TEST_CASE("Two clients of two agents live in one process and share nothing") {
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, 1));
  FakeAgent::Options other_options = AgentOptions(directory, 1);
  other_options.server.socket_path = directory.Path("other.sock");
  other_options.job_name = "other-job";
  FakeAgent other(other_options);
  TestClient first(agent.socket_path(), 0);
  const TestClient second(other.socket_path(), 0);
  REQUIRE(first.status() == TALWEG_OK);
  REQUIRE(second.status() == TALWEG_OK);
  CHECK(std::string(talweg_job_name(second.get())) == "other-job");
  CHECK(talweg_shutdown(first.get(), kGenerousNs) == TALWEG_OK);
  talweg_tensor tensor = 0;
  CHECK(talweg_declare(first.get(), "a", TALWEG_F32, TALWEG_SUM, 0, 1, 0, kGenerousNs, &tensor) ==
        TALWEG_CLOSED);
  CHECK(talweg_declare(second.get(), "a", TALWEG_F32, TALWEG_SUM, 0, 1, 0, kGenerousNs, &tensor) ==
        TALWEG_OK);
  agent.WaitUntil([](const FakeAgent::Seen& seen) { return seen.gone_clean == 1; });
  CHECK(agent.seen().gone_unclean == 0);
}

TEST_CASE("A rank that has said goodbye may come back") {
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, 1));
  for (int life = 0; life < 3; ++life) {
    const TestClient client(agent.socket_path(), 0);
    REQUIRE(client.status() == TALWEG_OK);
    talweg_tensor tensor = 0;
    REQUIRE(talweg_declare(client.get(), "w", TALWEG_I32, TALWEG_SUM, 0, 1, 0, kGenerousNs,
                           &tensor) == TALWEG_OK);
    const int32_t value = life + 1;
    int32_t out = 0;
    CHECK(PushPull(client.get(), tensor, &value, &out) == "");
    CHECK(out == value);
  }
  CHECK(agent.seen().gone_clean == 3);
}

TEST_CASE("Large tensors get segments of their own") {
  const TestDirectory directory;
  FakeAgent::Options options = AgentOptions(directory, 2);
  options.server.segment_bytes_min = 64 * 1024;
  FakeAgent agent(options);
  OnEachRank(agent, 2, [&](talweg_client* client, uint32_t) -> std::string {
    for (const size_t count : {3u, 70'000u, 5u, 1'000'003u, 1u}) {
      talweg_tensor tensor = 0;
      RETURN_IF_BAD(talweg_declare(client, std::to_string(count).c_str(), TALWEG_U8, TALWEG_SUM, 0,
                                   count, 0, kGenerousNs, &tensor));
      const std::vector<uint8_t> in(count, 100);
      std::vector<uint8_t> out(count);
      for (int round = 0; round < 2; ++round) {
        if (std::string bad = PushPull(client, tensor, in.data(), out.data()); bad != "")
          return bad;
        if (out != std::vector<uint8_t>(count, 200)) return "bytes of " + std::to_string(count);
      }
    }
    return "";
  });
}

TEST_CASE("A limit of memory is an error with its figures") {
  const TestDirectory directory;
  FakeAgent::Options options = AgentOptions(directory, 1);
  options.server.contribution_bytes_max = 1 << 20;
  FakeAgent agent(options);
  const TestClient client(agent.socket_path(), 0);
  talweg_tensor tensor = 0;
  CHECK(talweg_declare(client.get(), "fits", TALWEG_U8, TALWEG_SUM, 0, 1 << 19, 0, kGenerousNs,
                       &tensor) == TALWEG_OK);
  CHECK(talweg_declare(client.get(), "does not", TALWEG_U8, TALWEG_SUM, 0, 1 << 20, 0, kGenerousNs,
                       &tensor) == TALWEG_OUT_OF_MEMORY);
  CHECK_THAT(talweg_last_error(),
             Contains("local rank 0") && Contains("1 MiB") && Contains("512.1 KiB"));
}

}  // namespace
}  // namespace talweg::c
