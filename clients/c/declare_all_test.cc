// SPDX-License-Identifier: Apache-2.0

// talweg_declare_all: many tensors that ranks agree on together.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "clients/c/client_testing.h"
#include "clients/c/talweg.h"
#include "libs/shm/testing/fake_agent.h"

namespace talweg::c {
namespace {

using Catch::Matchers::Contains;
using shm::FakeAgent;

// This is more than may be under way at once.
constexpr size_t kMany = 1000;

struct Declarations {
  // Tensor i has i % 7 + 1 elements.
  explicit Declarations(size_t count) {
    for (size_t i = 0; i < count; ++i) names.push_back("tensor-" + std::to_string(i));
    for (size_t i = 0; i < count; ++i) {
      all.push_back({names[i].c_str(), TALWEG_I32, TALWEG_SUM, 0, 0, i % 7 + 1});
    }
    tensors.resize(count);
  }
  talweg_status Declare(talweg_client* client, int64_t timeout_ns = kGenerousNs) {
    return talweg_declare_all(client, all.data(), all.size(), timeout_ns, tensors.data());
  }

  std::vector<std::string> names;
  std::vector<talweg_declaration> all;
  std::vector<talweg_tensor> tensors;
};

TEST_CASE("Many tensors that are declared at once keep their names") {
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, 1));
  const TestClient client(agent.socket_path(), 0);
  REQUIRE(client.status() == TALWEG_OK);
  Declarations many(kMany);
  REQUIRE(many.Declare(client.get()) == TALWEG_OK);
  for (size_t i = 0; i < kMany; ++i) {
    REQUIRE(talweg_tensor_bytes(client.get(), many.tensors[i]) == (i % 7 + 1) * 4);
  }
  // Declaring again, or one by one, gives the same tensors.
  Declarations again(kMany);
  REQUIRE(again.Declare(client.get()) == TALWEG_OK);
  CHECK(again.tensors == many.tensors);
  talweg_tensor one = 0;
  REQUIRE(talweg_declare(client.get(), "tensor-700", TALWEG_I32, TALWEG_SUM, 0, 1, 0, kGenerousNs,
                         &one) == TALWEG_OK);
  CHECK(one == many.tensors[700]);
  // They work as other tensors do.
  std::vector<int32_t> values(7, 3);
  talweg_round round = 0;
  REQUIRE(talweg_push_pull(client.get(), many.tensors[999], values.data(), 0, kGenerousNs,
                           &round) == TALWEG_OK);
  CHECK(talweg_wait(client.get(), many.tensors[999], round, values.data(), kGenerousNs) ==
        TALWEG_OK);
}

TEST_CASE("Several threads declare the same tensors at once") {
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, 1));
  const TestClient client(agent.socket_path(), 0);
  REQUIRE(client.status() == TALWEG_OK);
  std::vector<Declarations> of_thread(4, Declarations(0));
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (Declarations& mine : of_thread) {
    threads.emplace_back([&] {
      Declarations many(kMany);
      if (many.Declare(client.get()) != TALWEG_OK) ++failed;
      mine.tensors = many.tensors;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failed == 0);
  for (const Declarations& each : of_thread) CHECK(each.tensors == of_thread[0].tensors);
}

TEST_CASE("The error names the first tensor that cannot be declared, with the reason") {
  const TestDirectory directory;
  FakeAgent::Options options = AgentOptions(directory, 1);
  options.server.result_bytes_max = 64 * 1024;
  FakeAgent agent(options);
  const TestClient client(agent.socket_path(), 0);
  REQUIRE(client.status() == TALWEG_OK);
  Declarations many(3);

  many.all[1].name = nullptr;
  CHECK(many.Declare(client.get()) == TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains("number 1 is NULL"));
  many.all[1] = {"odd", static_cast<talweg_dtype>(300), TALWEG_SUM, 0, 0, 1};
  CHECK(many.Declare(client.get()) == TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains("'odd'") && Contains("300"));
  many.all[1] = {"odd", static_cast<talweg_dtype>(99), TALWEG_SUM, 0, 0, 1};
  CHECK(many.Declare(client.get()) == TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains("'odd'") && Contains("99"));
  // Until here nothing was asked for. The agent refuses this one; tensors after it may exist.
  many.all[1] = {"huge", TALWEG_I32, TALWEG_SUM, 0, 0, 1 << 20};
  CHECK(many.Declare(client.get()) == TALWEG_OUT_OF_MEMORY);
  CHECK_THAT(talweg_last_error(), Contains("64 KiB"));
  many.all[1] = {"small", TALWEG_I32, TALWEG_SUM, 0, 0, 1};
  CHECK(many.Declare(client.get()) == TALWEG_OK);

  CHECK(talweg_declare_all(nullptr, many.all.data(), 3, 0, many.tensors.data()) ==
        TALWEG_INVALID_ARGUMENT);
  CHECK(talweg_declare_all(client.get(), nullptr, 3, 0, many.tensors.data()) ==
        TALWEG_INVALID_ARGUMENT);
  CHECK(talweg_declare_all(client.get(), many.all.data(), 3, 0, nullptr) ==
        TALWEG_INVALID_ARGUMENT);
  CHECK(talweg_declare_all(client.get(), nullptr, 0, 0, nullptr) == TALWEG_OK);
}

TEST_CASE("Declarations that are not answered end in time, and may be made again") {
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, 1));
  const TestClient client(agent.socket_path(), 0);
  REQUIRE(client.status() == TALWEG_OK);
  Declarations many(kMany);
  agent.Pause();
  CHECK(many.Declare(client.get(), 20'000'000) == TALWEG_TIMEOUT);
  CHECK_THAT(talweg_last_error(), Contains("'tensor-0'") && Contains("talweg status"));
  CHECK(many.Declare(client.get(), 0) == TALWEG_TIMEOUT);
  agent.Resume();
  CHECK(many.Declare(client.get()) == TALWEG_OK);
}

TEST_CASE("Declarations end with the job") {
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, 1));
  const TestClient client(agent.socket_path(), 0);
  REQUIRE(client.status() == TALWEG_OK);
  agent.FailAll(shm::RankStatus::kJobFailed, "node 3 is gone");
  Declarations many(kMany);
  CHECK(many.Declare(client.get()) == TALWEG_JOB_FAILED);
  CHECK_THAT(talweg_last_error(), Contains("'tensor-0'") && Contains("node 3 is gone"));
}

}  // namespace
}  // namespace talweg::c
