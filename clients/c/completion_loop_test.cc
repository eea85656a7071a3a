// SPDX-License-Identifier: Apache-2.0

// The loop that calls back when rounds are over, as kernels of frameworks use it.

#include "clients/c/completion_loop.h"

#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
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

using shm::FakeAgent;

int ThreadCount() {
  DIR* const tasks = ::opendir("/proc/self/task");
  REQUIRE(tasks != nullptr);
  int count = 0;
  while (const dirent* entry = ::readdir(tasks)) {
    if (entry->d_name[0] != '.') ++count;
  }
  ::closedir(tasks);
  return count;
}

// What one callback was told. A test can wait for it.
class Told {
 public:
  CompletionLoop::Callback Callback() {
    return [this](talweg_status told) {
      thread_ = std::this_thread::get_id();
      told_.set_value(told);
    };
  }
  talweg_status Get() {
    std::future<talweg_status> told = told_.get_future();
    REQUIRE(told.wait_for(std::chrono::nanoseconds(kGenerousNs)) == std::future_status::ready);
    return told.get();
  }
  std::thread::id thread() const { return thread_; }

 private:
  std::promise<talweg_status> told_;
  std::thread::id thread_;
};

// Two ranks with a tensor "t" of one element.
struct Pair {
  explicit Pair(bool ranks_sum)
      : agent(std::make_unique<FakeAgent>([&] {
          FakeAgent::Options options = AgentOptions(directory, 2);
          options.ranks_sum = ranks_sum;
          return options;
        }())),
        zero(agent->socket_path(), 0),
        one(agent->socket_path(), 1) {
    for (const TestClient* client : {&zero, &one}) tensor = Declare(*client, 1);
  }

  TestDirectory directory;
  std::unique_ptr<FakeAgent> agent;
  TestClient zero;
  TestClient one;
  talweg_tensor tensor = 0;
  const int32_t value = 4;
};

TEST_CASE("A loop has a thread from the first watch until its own end") {
  Pair pair(true);
  const int before = ThreadCount();
  {
    CompletionLoop loop(pair.zero.get());
    CHECK(ThreadCount() == before);
    Push(pair.zero, pair.tensor, &pair.value);
    Told told;
    loop.Watch(pair.tensor, 1, told.Callback());
    CHECK(ThreadCount() == before + 1);
    Push(pair.one, pair.tensor, &pair.value);
    CHECK(told.Get() == TALWEG_OK);
    CHECK(told.thread() != std::this_thread::get_id());
    CHECK(ThreadCount() == before + 1);
  }
  CHECK(ThreadCount() == before);
}

TEST_CASE("The callbacks of many tensors take their rounds") {
  const bool ranks_sum = GENERATE(false, true);
  Pair pair(ranks_sum);
  constexpr int kTensors = 40;
  std::vector<talweg_tensor> tensors;
  for (int i = 0; i < kTensors; ++i) {
    const std::string name = "t" + std::to_string(i);
    for (const TestClient* client : {&pair.zero, &pair.one}) {
      talweg_tensor tensor = 0;
      REQUIRE(talweg_declare(client->get(), name.c_str(), TALWEG_I32, TALWEG_SUM, 0, 1, 0,
                             kGenerousNs, &tensor) == TALWEG_OK);
      if (client == &pair.zero) tensors.push_back(tensor);
    }
  }
  // Each rank has a loop, and takes results on the loop's thread.
  std::vector<std::string> wrong(2);
  std::vector<std::thread> ranks;
  for (const TestClient* client : {&pair.zero, &pair.one}) {
    ranks.emplace_back([&, client] {
      CompletionLoop loop(client->get());
      std::string& error = wrong[client == &pair.one ? 1 : 0];
      for (int round = 1; round <= 30 && error.empty(); ++round) {
        std::atomic<int> left{kTensors};
        std::promise<void> done;
        std::atomic<int> failed{0};
        std::vector<int32_t> sums(kTensors);
        for (int i = 0; i < kTensors; ++i) {
          const int32_t value = i + round;
          talweg_round pushed = 0;
          if (talweg_push_pull(client->get(), tensors[i], &value, TALWEG_DECLARED_PRIORITY,
                               kGenerousNs, &pushed) != TALWEG_OK) {
            ++failed;
          }
          loop.Watch(tensors[i], pushed, [&, i, pushed](talweg_status told) {
            if (told == TALWEG_OK) {
              told = talweg_wait(client->get(), tensors[i], pushed, &sums[i], 0);
            }
            if (told != TALWEG_OK) ++failed;
            if (--left == 0) done.set_value();
          });
        }
        if (done.get_future().wait_for(std::chrono::nanoseconds(kGenerousNs)) !=
            std::future_status::ready) {
          error = "not all rounds were told";
        }
        for (int i = 0; i < kTensors; ++i) {
          if (sums[i] != 2 * (i + round)) error = "a sum is wrong";
        }
        if (failed != 0) error = "a call has failed";
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(wrong == std::vector<std::string>(2));
}

TEST_CASE("When the client fails, every callback is called, and later ones at once") {
  Pair pair(false);
  CompletionLoop loop(pair.zero.get());
  Push(pair.zero, pair.tensor, &pair.value);
  Told first;
  Told second;
  loop.Watch(pair.tensor, 1, first.Callback());
  loop.Watch(pair.tensor, 1, second.Callback());
  SECTION("The agent is gone") {
    pair.agent.reset();
    CHECK(first.Get() == TALWEG_OK);
    CHECK(second.Get() == TALWEG_OK);
    CHECK(talweg_wait(pair.zero.get(), pair.tensor, 1, nullptr, -1) == TALWEG_AGENT_LOST);
  }
  SECTION("The client is shut down") {
    CHECK(talweg_shutdown(pair.zero.get(), kGenerousNs) == TALWEG_OK);
    CHECK(first.Get() == TALWEG_OK);
    CHECK(second.Get() == TALWEG_OK);
    CHECK(talweg_wait(pair.zero.get(), pair.tensor, 1, nullptr, -1) == TALWEG_CLOSED);
  }
  Told late;
  loop.Watch(pair.tensor, 1, late.Callback());
  CHECK(late.Get() == TALWEG_OK);
  CHECK(late.thread() == std::this_thread::get_id());
}

TEST_CASE("A loop that ends before a round reports that") {
  Pair pair(false);
  Told told;
  {
    CompletionLoop loop(pair.zero.get());
    Push(pair.zero, pair.tensor, &pair.value);
    loop.Watch(pair.tensor, 1, told.Callback());
  }
  CHECK(told.Get() == TALWEG_CLOSED);
  Push(pair.one, pair.tensor, &pair.value);
  CHECK((Take<int32_t>(pair.zero, pair.tensor, 1, 1) == std::vector<int32_t>{8}));
}

TEST_CASE("A round that was never pushed is reported at once, and the wait says why") {
  Pair pair(false);
  CompletionLoop loop(pair.zero.get());
  Told told;
  loop.Watch(pair.tensor, 5, told.Callback());
  CHECK(told.Get() == TALWEG_OK);
  CHECK(talweg_wait(pair.zero.get(), pair.tensor, 5, nullptr, -1) == TALWEG_INVALID_ARGUMENT);
}

TEST_CASE("A forked child has no loop, and ends") {
  Pair pair(false);
  auto loop = std::make_unique<CompletionLoop>(pair.zero.get());
  Push(pair.zero, pair.tensor, &pair.value);
  Told told;
  loop->Watch(pair.tensor, 1, told.Callback());
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    talweg_status status = TALWEG_OK;
    loop->Watch(pair.tensor, 1, [&](talweg_status given) { status = given; });
    loop.reset();
    ::_exit(status == TALWEG_FORKED ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  Push(pair.one, pair.tensor, &pair.value);
  CHECK(told.Get() == TALWEG_OK);
}

}  // namespace
}  // namespace talweg::c
