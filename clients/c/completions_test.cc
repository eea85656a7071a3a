// SPDX-License-Identifier: Apache-2.0

// A descriptor that reports rounds (docs/shared_memory.md): who is told of what, and when.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "clients/c/client_testing.h"
#include "clients/c/completions_testing.h"
#include "clients/c/in_place_testing.h"
#include "clients/c/rank_sums_testing.h"
#include "clients/c/talweg.h"
#include "libs/shm/layout/rank_sums.h"
#include "libs/shm/testing/fake_agent.h"

namespace talweg::c {
namespace {

using Catch::Matchers::Contains;
using shm::FakeAgent;

// Which side sums, and where.
enum class Summed { kByAgent, kByRanks, kInPlace };

// Ranks of one node, all in this process. All have declared a tensor "t".
struct WatchedNode {
  WatchedNode(uint32_t ranks, Summed summed, uint64_t count = 100)
      : agent([&] {
          FakeAgent::Options options = AgentOptions(directory, ranks);
          options.ranks_sum = summed != Summed::kByAgent;
          return options;
        }()) {
    for (uint32_t i = 0; i < ranks; ++i) clients.emplace_back(agent.socket_path(), i);
    for (const TestClient& client : clients) tensor = DeclareAs(client, "t", summed, count);
    values.assign(count, 1);
    fd = CompletionFd(clients[0]);
  }

  static talweg_tensor DeclareAs(const TestClient& client, const std::string& name, Summed summed,
                                 uint64_t count) {
    const talweg_declaration declaration{name.c_str(), TALWEG_I32, TALWEG_SUM, 0, 0, count};
    talweg_tensor tensor = 0;
    const auto declare =
        summed == Summed::kInPlace ? talweg_declare_all_in_place : talweg_declare_all;
    const talweg_status status = declare(client.get(), &declaration, 1, kGenerousNs, &tensor);
    INFO(talweg_last_error());
    REQUIRE(status == TALWEG_OK);
    return tensor;
  }
  talweg_tensor DeclareToo(const std::string& name, Summed summed) {
    talweg_tensor declared = 0;
    for (const TestClient& client : clients) {
      declared = DeclareAs(client, name, summed, values.size());
    }
    return declared;
  }
  // Pushes a round of the tensor at all ranks but the first.
  void PushOthers(talweg_tensor of) {
    for (size_t i = 1; i < clients.size(); ++i) Push(clients[i], of, values.data());
  }
  void TakeAll(talweg_tensor of, talweg_round round) {
    for (const TestClient& client : clients) {
      const auto sum = static_cast<int32_t>(clients.size());
      CHECK((Take<int32_t>(client, of, round, values.size()) ==
             std::vector<int32_t>(values.size(), sum)));
    }
  }
  // Afterwards the ranks know each other's memory, and see rounds complete.
  void Acquaint() {
    const talweg_round round = Push(clients[0], tensor, values.data());
    PushOthers(tensor);
    TakeAll(tensor, round);
    Tags(clients[0]);
  }

  TestDirectory directory;
  FakeAgent agent;
  std::vector<TestClient> clients;
  std::vector<int32_t> values;
  talweg_tensor tensor = 0;
  int fd = -1;
};

TEST_CASE("A watched round is reported once, when all have pushed it") {
  const Summed summed = GENERATE(Summed::kByAgent, Summed::kByRanks, Summed::kInPlace);
  const uint32_t ranks = GENERATE(2u, 3u);
  CAPTURE(static_cast<int>(summed), ranks);
  WatchedNode node(ranks, summed);
  for (talweg_round round = 1; round <= 20; ++round) {
    Push(node.clients[0], node.tensor, node.values.data());
    Watch(node.clients[0], node.tensor, round, 1000 + round);
    CHECK(Tags(node.clients[0]).empty());
    CHECK_FALSE(IsReadable(node.fd));
    node.PushOthers(node.tensor);
    CHECK(AwaitTags(node.clients[0], node.fd, 1) == std::vector<uint64_t>{1000 + round});
    // The wait does not have to wait for anybody.
    std::vector<int32_t> out(node.values.size());
    CHECK(talweg_wait(node.clients[0].get(), node.tensor, round, out.data(), 0) == TALWEG_OK);
    CHECK((out == std::vector<int32_t>(out.size(), static_cast<int32_t>(ranks))));
    for (uint32_t i = 1; i < ranks; ++i) Take<int32_t>(node.clients[i], node.tensor, round, 100);
    CHECK(Tags(node.clients[0]).empty());
  }
}

TEST_CASE("A round that the ranks have seen complete is reported without the agent") {
  const Summed summed = GENERATE(Summed::kByRanks, Summed::kInPlace);
  WatchedNode node(2, summed);
  node.Acquaint();
  node.agent.Pause();
  for (talweg_round round = 2; round <= 5; ++round) {
    node.PushOthers(node.tensor);
    Push(node.clients[0], node.tensor, node.values.data());
    Watch(node.clients[0], node.tensor, round, round);
    CHECK(IsReadable(node.fd));
    CHECK(Tags(node.clients[0]) == std::vector<uint64_t>{round});
    CHECK_FALSE(IsReadable(node.fd));
    node.TakeAll(node.tensor, round);
  }
  node.agent.Resume();
}

TEST_CASE("Nobody rings for rounds that nobody watches, before a watch and after it") {
  WatchedNode node(2, Summed::kByRanks);
  node.Acquaint();
  node.agent.WaitUntil([](const FakeAgent::Seen& seen) { return seen.pushes == 2; });
  const uint64_t before = node.agent.seen().counters.doorbells_received;
  Push(node.clients[0], node.tensor, node.values.data());
  CHECK(node.agent.seen().counters.doorbells_received == before);
  Watch(node.clients[0], node.tensor, 2, 7);
  node.agent.WaitUntil([](const FakeAgent::Seen& seen) { return seen.pushes == 3; });
  node.PushOthers(node.tensor);
  CHECK(AwaitTags(node.clients[0], node.fd, 1) == std::vector<uint64_t>{7});
  node.TakeAll(node.tensor, 2);
  // Nothing is watched any more, so nobody rings again.
  node.agent.WaitUntil([](const FakeAgent::Seen& seen) { return seen.pushes == 4; });
  const uint64_t after = node.agent.seen().counters.doorbells_received;
  for (talweg_round round = 3; round < 20; ++round) {
    Push(node.clients[0], node.tensor, node.values.data());
    node.PushOthers(node.tensor);
    node.TakeAll(node.tensor, round);
  }
  CHECK(node.agent.seen().counters.doorbells_received == after);
}

TEST_CASE("More rounds than there is room for are reported one after another, in order") {
  const Summed summed = GENERATE(Summed::kByAgent, Summed::kByRanks);
  WatchedNode node(2, summed);
  constexpr uint64_t kTensors = 50;
  std::vector<talweg_tensor> tensors;
  for (uint64_t i = 0; i < kTensors; ++i) {
    tensors.push_back(node.DeclareToo("t" + std::to_string(i), summed));
  }
  for (uint64_t i = 0; i < kTensors; ++i) {
    Push(node.clients[0], tensors[i], node.values.data());
    Watch(node.clients[0], tensors[i], 1, i);
  }
  for (const talweg_tensor tensor : tensors) {
    node.PushOthers(tensor);
    CHECK(talweg_wait(node.clients[1].get(), tensor, 1, nullptr, kGenerousNs) == TALWEG_OK);
  }
  // The agent has completed all of them before the first one is reported.
  node.agent.WaitUntil(
      [](const FakeAgent::Seen& seen) { return seen.counters.completions == kTensors; });
  for (uint64_t i = 0; i < kTensors; ++i) {
    CAPTURE(i);
    REQUIRE(IsReadable(node.fd));
    REQUIRE(Tags(node.clients[0], 1) == std::vector<uint64_t>{i});
  }
  CHECK(Tags(node.clients[0]).empty());
  CHECK_FALSE(IsReadable(node.fd));
}

TEST_CASE("A round may be watched twice, and by one tag with others") {
  WatchedNode node(2, Summed::kByAgent);
  Push(node.clients[0], node.tensor, node.values.data());
  for (int i = 0; i < 3; ++i) Watch(node.clients[0], node.tensor, 1, 5);
  node.PushOthers(node.tensor);
  CHECK(AwaitTags(node.clients[0], node.fd, 3) == std::vector<uint64_t>{5, 5, 5});
  node.TakeAll(node.tensor, 1);
  // This round is over, and its result is taken.
  Watch(node.clients[0], node.tensor, 1, 6);
  CHECK(AwaitTags(node.clients[0], node.fd, 1) == std::vector<uint64_t>{6});
}

TEST_CASE("The agent reports a round for a rank that does not announce its pushes") {
  WatchedNode node(2, Summed::kInPlace);
  node.Acquaint();
  node.agent.WaitUntil([](const FakeAgent::Seen& seen) { return seen.pushes == 2; });
  // This rank pushes as one with an older client does.
  const std::span<char> buffer = Buffer<char>(node.clients[1], node.tensor);
  const shm::RankSumShape shape = InPlaceShape(buffer.size(), 2);
  auto& line = *reinterpret_cast<shm::PushedLine*>(buffer.data() + shape.pushed_offset());
  node.PushOthers(node.tensor);
  line.round = 0;
  Push(node.clients[0], node.tensor, node.values.data());
  Watch(node.clients[0], node.tensor, 2, 9);
  CHECK(AwaitTags(node.clients[0], node.fd, 1) == std::vector<uint64_t>{9});
  node.TakeAll(node.tensor, 2);
}

TEST_CASE(
    "The descriptor reports a round even if a thread that sleeps for another reads the Wake") {
  WatchedNode node(2, Summed::kByAgent);
  const talweg_tensor slept_for = node.DeclareToo("slept for", Summed::kByAgent);
  for (talweg_round round = 1; round <= 50; ++round) {
    Push(node.clients[0], slept_for, node.values.data());
    Push(node.clients[0], node.tensor, node.values.data());
    const uint64_t before = WaitsSlept(node.clients[0].get());
    talweg_status slept = TALWEG_INTERNAL;
    std::thread sleeper([&] {
      slept = talweg_wait(node.clients[0].get(), slept_for, round, nullptr, kGenerousNs);
    });
    AwaitSleepers(node.clients[0].get(), before, 1);
    Watch(node.clients[0], node.tensor, round, round);
    node.PushOthers(node.tensor);
    CHECK(AwaitTags(node.clients[0], node.fd, 1) == std::vector<uint64_t>{round});
    node.TakeAll(node.tensor, round);
    node.PushOthers(slept_for);
    sleeper.join();
    CHECK(slept == TALWEG_OK);
    Take<int32_t>(node.clients[1], slept_for, round, 100);
  }
}

TEST_CASE("When the job fails, all tags are reported, and then the reason, for good") {
  WatchedNode node(2, Summed::kByAgent);
  const talweg_tensor complete = node.DeclareToo("complete", Summed::kByAgent);
  Push(node.clients[0], node.tensor, node.values.data());
  Push(node.clients[0], complete, node.values.data());
  node.PushOthers(complete);
  Watch(node.clients[0], node.tensor, 1, 1);
  Watch(node.clients[0], complete, 1, 2);
  CHECK(AwaitTags(node.clients[0], node.fd, 1) == std::vector<uint64_t>{2});
  node.agent.FailAll(shm::RankStatus::kJobFailed, "node 7 is gone");
  CHECK(AwaitTags(node.clients[0], node.fd, 1) == std::vector<uint64_t>{1});
  for (int i = 0; i < 3; ++i) {
    CHECK(AwaitEnd(node.clients[0], node.fd) == TALWEG_JOB_FAILED);
    CHECK_THAT(talweg_last_error(), Contains("node 7 is gone"));
  }
  CHECK(talweg_wait(node.clients[0].get(), complete, 1, nullptr, 0) == TALWEG_OK);
  CHECK(talweg_wait(node.clients[0].get(), node.tensor, 1, nullptr, -1) == TALWEG_JOB_FAILED);
  // Nothing is watched any more.
  CHECK(talweg_watch(node.clients[0].get(), complete, 1, 3) == TALWEG_JOB_FAILED);
  CHECK(AwaitEnd(node.clients[0], node.fd) == TALWEG_JOB_FAILED);
  // A client that asks only now hears the same.
  CHECK(AwaitEnd(node.clients[1], CompletionFd(node.clients[1])) == TALWEG_JOB_FAILED);
}

TEST_CASE("The end of an agent is reported, whether something is watched or not") {
  const bool watches = GENERATE(false, true);
  const TestDirectory directory;
  auto agent = std::make_unique<FakeAgent>(AgentOptions(directory, 2));
  const TestClient zero(agent->socket_path(), 0);
  const TestClient one(agent->socket_path(), 1);
  const talweg_tensor tensor = Declare(zero, 1);
  const int fd = CompletionFd(zero);
  const int32_t value = 1;
  Push(zero, tensor, &value);
  if (watches) Watch(zero, tensor, 1, 4);
  CHECK(Tags(zero).empty());
  agent.reset();
  if (watches) CHECK(AwaitTags(zero, fd, 1) == std::vector<uint64_t>{4});
  CHECK(AwaitEnd(zero, fd) == TALWEG_AGENT_LOST);
}

TEST_CASE("A thread that only sleeps on the descriptor hears that the agent is stopped") {
  const TestDirectory directory;
  FakeAgent::Options options = AgentOptions(directory, 2);
  options.server.silence_ms = 2'000;
  FakeAgent agent(options);
  const TestClient zero(agent.socket_path(), 0);
  const TestClient one(agent.socket_path(), 1);
  const talweg_tensor tensor = Declare(zero, 1);
  const int fd = CompletionFd(zero);
  const int32_t value = 1;
  Push(zero, tensor, &value);
  Watch(zero, tensor, 1, 4);
  agent.Pause();
  CHECK(AwaitTags(zero, fd, 1) == std::vector<uint64_t>{4});
  CHECK(AwaitEnd(zero, fd) == TALWEG_AGENT_LOST);
  CHECK_THAT(talweg_last_error(), Contains("no sign of life"));
  agent.Resume();
}

TEST_CASE("A shutdown by another thread is reported") {
  WatchedNode node(2, Summed::kByAgent);
  Push(node.clients[0], node.tensor, node.values.data());
  Watch(node.clients[0], node.tensor, 1, 8);
  talweg_status shut_down = TALWEG_INTERNAL;
  std::thread other([&] { shut_down = talweg_shutdown(node.clients[0].get(), kGenerousNs); });
  CHECK(AwaitTags(node.clients[0], node.fd, 1) == std::vector<uint64_t>{8});
  CHECK(AwaitEnd(node.clients[0], node.fd) == TALWEG_CLOSED);
  other.join();
  CHECK(shut_down == TALWEG_OK);
  CHECK(talweg_watch(node.clients[0].get(), node.tensor, 1, 9) == TALWEG_CLOSED);
}

TEST_CASE("A shutdown is reported though the agent does not answer it") {
  WatchedNode node(2, Summed::kByAgent);
  Push(node.clients[0], node.tensor, node.values.data());
  Watch(node.clients[0], node.tensor, 1, 8);
  node.agent.Pause();
  std::thread other([&] { talweg_shutdown(node.clients[0].get(), kGenerousNs); });
  CHECK(AwaitTags(node.clients[0], node.fd, 1) == std::vector<uint64_t>{8});
  CHECK(AwaitEnd(node.clients[0], node.fd) == TALWEG_CLOSED);
  node.agent.Resume();
  other.join();
}

TEST_CASE("A round that is aborted counts as over") {
  WatchedNode node(2, Summed::kByAgent);
  Push(node.clients[0], node.tensor, node.values.data());
  Watch(node.clients[0], node.tensor, 1, 1);
  node.agent.WaitUntil([](const FakeAgent::Seen& seen) { return seen.pushes == 1; });
  node.agent.AbortRound("t", shm::RankStatus::kAborted, "for the test");
  CHECK(AwaitTags(node.clients[0], node.fd, 1) == std::vector<uint64_t>{1});
  CHECK(talweg_wait(node.clients[0].get(), node.tensor, 1, nullptr, 0) == TALWEG_ABORTED);
}

TEST_CASE("A forked child gets an error, and takes nothing from its parent") {
  WatchedNode node(2, Summed::kByAgent);
  Push(node.clients[0], node.tensor, node.values.data());
  Watch(node.clients[0], node.tensor, 1, 3);
  const uint64_t slept = WaitsSlept(node.clients[0].get());
  node.PushOthers(node.tensor);
  CHECK(talweg_wait(node.clients[1].get(), node.tensor, 1, nullptr, kGenerousNs) == TALWEG_OK);
  CHECK(WaitsSlept(node.clients[0].get()) == slept);
  REQUIRE(IsReadable(node.fd, kGenerousNs));
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    uint64_t tag = 0;
    size_t count = 5;
    int fd = -1;
    talweg_client* const client = node.clients[0].get();
    bool right = talweg_completed(client, &tag, 1, &count) == TALWEG_FORKED && count == 0;
    right = right && talweg_completion_fd(client, &fd) == TALWEG_FORKED;
    right = right && talweg_watch(client, node.tensor, 1, 4) == TALWEG_FORKED;
    talweg_free(client);
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  CHECK(AwaitTags(node.clients[0], node.fd, 1) == std::vector<uint64_t>{3});
}

TEST_CASE("Each client has a descriptor of its own, and it is the same each time") {
  WatchedNode node(2, Summed::kByRanks);
  const int other = CompletionFd(node.clients[1]);
  CHECK(other != node.fd);
  CHECK(CompletionFd(node.clients[0]) == node.fd);
  Push(node.clients[0], node.tensor, node.values.data());
  Watch(node.clients[0], node.tensor, 1, 1);
  Push(node.clients[1], node.tensor, node.values.data());
  CHECK(AwaitTags(node.clients[0], node.fd, 1) == std::vector<uint64_t>{1});
  CHECK(Tags(node.clients[1]).empty());
  Watch(node.clients[1], node.tensor, 1, 2);
  CHECK(AwaitTags(node.clients[1], other, 1) == std::vector<uint64_t>{2});
}

TEST_CASE("Parts of a program that do not know each other have descriptors of their own") {
  WatchedNode node(2, Summed::kByAgent);
  talweg_client* const client = node.clients[0].get();
  const talweg_tensor other = node.DeclareToo("other", Summed::kByAgent);
  int fds[2] = {-1, -1};
  for (int& fd : fds) REQUIRE(talweg_another_completion_fd(client, &fd) == TALWEG_OK);
  CHECK((fds[0] != fds[1] && fds[0] != node.fd && fds[1] != node.fd));
  const auto tags_by = [&](int fd) {
    std::vector<uint64_t> tags(8);
    size_t count = 0;
    while (count == 0) {
      REQUIRE(IsReadable(fd, kGenerousNs));
      REQUIRE(talweg_completed_by(client, fd, tags.data(), tags.size(), &count) == TALWEG_OK);
    }
    tags.resize(count);
    return tags;
  };
  for (talweg_round round = 1; round <= 20; ++round) {
    Push(node.clients[0], node.tensor, node.values.data());
    Push(node.clients[0], other, node.values.data());
    // These are the same tags for other rounds.
    REQUIRE(talweg_watch_by(client, fds[0], node.tensor, round, 1) == TALWEG_OK);
    REQUIRE(talweg_watch_by(client, fds[1], other, round, 1) == TALWEG_OK);
    Watch(node.clients[0], node.tensor, round, 1);
    node.PushOthers(node.tensor);
    // Whoever reads the socket passes the news to the others.
    CHECK(AwaitTags(node.clients[0], node.fd, 1) == std::vector<uint64_t>{1});
    CHECK(tags_by(fds[0]) == std::vector<uint64_t>{1});
    node.TakeAll(node.tensor, round);
    CHECK(talweg_poll(client, other, round) == TALWEG_PENDING);
    node.PushOthers(other);
    CHECK(tags_by(fds[1]) == std::vector<uint64_t>{1});
    node.TakeAll(other, round);
  }
  uint64_t tag = 0;
  size_t count = 0;
  CHECK(talweg_watch_by(client, 0, other, 1, 1) == TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains("0 is not a descriptor"));
  CHECK(talweg_completed_by(client, -1, &tag, 1, &count) == TALWEG_INVALID_ARGUMENT);
  node.agent.FailAll(shm::RankStatus::kJobFailed, "for the test");
  for (const int fd : fds) {
    talweg_status status = TALWEG_OK;
    while (status == TALWEG_OK) {
      REQUIRE(IsReadable(fd, kGenerousNs));
      status = talweg_completed_by(client, fd, &tag, 1, &count);
    }
    CHECK(status == TALWEG_JOB_FAILED);
  }
}

TEST_CASE("A watch that makes no sense is refused with the reason") {
  WatchedNode node(2, Summed::kByAgent);
  talweg_client* const asked = node.clients[0].get();
  talweg_client* const not_asked = node.clients[1].get();
  uint64_t tags[2] = {};
  size_t count = 9;
  int fd = -1;
  CHECK(talweg_completion_fd(nullptr, &fd) == TALWEG_INVALID_ARGUMENT);
  CHECK(talweg_completion_fd(asked, nullptr) == TALWEG_INVALID_ARGUMENT);
  CHECK(talweg_watch(nullptr, node.tensor, 1, 1) == TALWEG_INVALID_ARGUMENT);
  CHECK(talweg_watch(asked, 77, 1, 1) == TALWEG_INVALID_ARGUMENT);
  CHECK(talweg_watch(asked, node.tensor, 0, 1) == TALWEG_INVALID_ARGUMENT);
  CHECK(talweg_watch(asked, node.tensor, 1, 1) == TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains("'t'") && Contains("round 1 has not been pushed"));
  CHECK(talweg_completed(nullptr, tags, 2, &count) == TALWEG_INVALID_ARGUMENT);
  CHECK(count == 0);
  CHECK(talweg_completed(asked, nullptr, 2, &count) == TALWEG_INVALID_ARGUMENT);
  CHECK(talweg_completed(asked, tags, 0, &count) == TALWEG_INVALID_ARGUMENT);
  CHECK(talweg_completed(asked, tags, 2, nullptr) == TALWEG_INVALID_ARGUMENT);
  CHECK(talweg_completed(not_asked, tags, 2, &count) == TALWEG_INVALID_ARGUMENT);
  Push(node.clients[1], node.tensor, node.values.data());
  CHECK(talweg_watch(not_asked, node.tensor, 1, 1) == TALWEG_INVALID_ARGUMENT);
  CHECK_THAT(talweg_last_error(), Contains("talweg_completion_fd"));
  CHECK(Tags(node.clients[0]).empty());
}

TEST_CASE("A process without a free descriptor hears so, and goes on without") {
  WatchedNode node(2, Summed::kByAgent);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  int lowest = ::dup(0);
  ::close(lowest);
  for (int left = 0; left < 3; ++left) {
    const rlimit tight{static_cast<rlim_t>(lowest + left), before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &tight) == 0);
    int fd = -1;
    const talweg_status status = talweg_completion_fd(node.clients[1].get(), &fd);
    const std::string text = talweg_last_error();
    ::setrlimit(RLIMIT_NOFILE, &before);
    CHECK(status == TALWEG_LIMIT);
    CHECK_THAT(text, Contains("ulimit -n"));
  }
  Push(node.clients[0], node.tensor, node.values.data());
  node.PushOthers(node.tensor);
  node.TakeAll(node.tensor, 1);
  const int fd = CompletionFd(node.clients[1]);
  Watch(node.clients[1], node.tensor, 1, 2);
  CHECK(AwaitTags(node.clients[1], fd, 1) == std::vector<uint64_t>{2});
}

TEST_CASE("A program that reads, writes or closes the descriptor harms only its own waiting") {
  WatchedNode node(2, Summed::kByAgent);
  uint64_t bytes = 1;
  CHECK(::read(node.fd, &bytes, sizeof(bytes)) < 0);
  CHECK(::write(node.fd, &bytes, sizeof(bytes)) < 0);
  Push(node.clients[0], node.tensor, node.values.data());
  Watch(node.clients[0], node.tensor, 1, 1);
  node.PushOthers(node.tensor);
  CHECK(AwaitTags(node.clients[0], node.fd, 1) == std::vector<uint64_t>{1});
  node.TakeAll(node.tensor, 1);
  // Another file has that number by now.
  const int other = ::dup(0);
  REQUIRE(::dup2(other, node.fd) == node.fd);
  ::close(other);
  Push(node.clients[0], node.tensor, node.values.data());
  Watch(node.clients[0], node.tensor, 2, 2);
  node.PushOthers(node.tensor);
  std::vector<uint64_t> tags;
  while (tags.empty()) tags = Tags(node.clients[0]);
  CHECK(tags == std::vector<uint64_t>{2});
  node.TakeAll(node.tensor, 2);
}

// A rank with one thread that gets reports, and others that wait.
class BusyRank {
 public:
  BusyRank(const TestClient& client, std::vector<talweg_tensor> tensors, uint64_t rounds)
      : client_(client), tensors_(std::move(tensors)), rounds_(rounds), fd_(CompletionFd(client)) {}

  // Returns "", or what went wrong.
  std::string Run(uint32_t seed) {
    std::mt19937 random(seed);
    for (talweg_round round = 1; round <= rounds_; ++round) {
      std::shuffle(tensors_.begin(), tensors_.end(), random);
      for (const talweg_tensor tensor : tensors_) {
        const int32_t value = 1;
        talweg_round pushed = 0;
        if (talweg_push_pull(client_.get(), tensor, &value, TALWEG_DECLARED_PRIORITY, kGenerousNs,
                             &pushed) != TALWEG_OK) {
          return talweg_last_error();
        }
      }
      // Some rounds are watched. Threads that sleep and read the socket wait for the others.
      const size_t watched = random() % (tensors_.size() + 1);
      std::vector<std::thread> sleepers;
      std::atomic<bool> failed{false};
      for (size_t i = watched; i < tensors_.size(); i += 2) {
        sleepers.emplace_back([&, i] {
          for (size_t k = i; k < std::min(i + 2, tensors_.size()); ++k) {
            if (talweg_wait(client_.get(), tensors_[k], round, nullptr, kGenerousNs) != TALWEG_OK) {
              failed = true;
            }
          }
        });
      }
      for (size_t i = 0; i < watched; ++i) {
        if (talweg_watch(client_.get(), tensors_[i], round, i) != TALWEG_OK) failed = true;
      }
      std::string wrong = TakeWatched(round, watched);
      for (std::thread& sleeper : sleepers) sleeper.join();
      if (!wrong.empty()) return wrong;
      if (failed) return "a wait has failed";
    }
    return "";
  }

 private:
  std::string TakeWatched(talweg_round round, size_t watched) {
    std::vector<bool> told(watched, false);
    for (size_t left = watched; left > 0;) {
      if (!IsReadable(fd_, kGenerousNs)) return "not told of a round";
      uint64_t tags[3];
      size_t count = 0;
      if (talweg_completed(client_.get(), tags, 3, &count) != TALWEG_OK) {
        return talweg_last_error();
      }
      for (size_t i = 0; i < count; ++i) {
        if (tags[i] >= watched || told[tags[i]]) return "told what was not watched";
        told[tags[i]] = true;
        --left;
        if (talweg_wait(client_.get(), tensors_[tags[i]], round, nullptr, 0) != TALWEG_OK) {
          return talweg_last_error();
        }
      }
    }
    return "";
  }

  const TestClient& client_;
  std::vector<talweg_tensor> tensors_;
  const uint64_t rounds_;
  const int fd_;
};

TEST_CASE("Threads that sleep and a descriptor share one socket, and nothing is lost") {
  const Summed summed = GENERATE(Summed::kByAgent, Summed::kByRanks, Summed::kInPlace);
  CAPTURE(static_cast<int>(summed));
  constexpr uint32_t kRanks = 3;
  WatchedNode node(kRanks, summed, 1);
  std::vector<talweg_tensor> tensors{node.tensor};
  for (int i = 0; i < 5; ++i) tensors.push_back(node.DeclareToo("t" + std::to_string(i), summed));
  std::vector<std::string> errors(kRanks);
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<BusyRank>> ranks;
  for (const TestClient& client : node.clients) {
    ranks.push_back(std::make_unique<BusyRank>(client, tensors, 200));
  }
  for (uint32_t i = 0; i < kRanks; ++i) {
    threads.emplace_back([&, i] { errors[i] = ranks[i]->Run(i + 1); });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(errors == std::vector<std::string>(kRanks));
}

}  // namespace
}  // namespace talweg::c
