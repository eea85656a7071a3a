// SPDX-License-Identifier: Apache-2.0

// Failures while ranks work: agents and ranks that die, jobs that fail, shutdowns and forks.

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "clients/c/client_testing.h"
#include "clients/c/talweg.h"
#include "libs/base/descriptor.h"
#include "libs/shm/layout/rank_status.h"
#include "libs/shm/testing/fake_agent.h"

extern char** environ;

namespace talweg::c {
namespace {

using Catch::Matchers::Contains;
using shm::FakeAgent;

// A rank_process. The destructor kills it at the latest.
class RankProcess {
 public:
  RankProcess(const std::string& socket, uint32_t local_rank, const std::string& what) {
    int in[2];
    int out[2];
    REQUIRE(::pipe2(in, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    std::string program = "clients/c/rank_process";
    std::string rank = std::to_string(local_rank);
    std::string socket_text = socket;
    std::string what_text = what;
    char* argv[] = {program.data(), socket_text.data(), rank.data(), what_text.data(), nullptr};
    const int error = ::posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    input_ = Descriptor(in[1]);
    output_ = Descriptor(out[0]);
    REQUIRE(error == 0);
  }
  ~RankProcess() {
    if (pid_ > 0) Kill();
  }

  pid_t pid() const { return pid_; }
  // Returns the next line that it prints, or "" when it ends.
  std::string ReadLine() {
    std::string line;
    char c;
    while (::read(output_.get(), &c, 1) == 1 && c != '\n') line += c;
    return line;
  }
  void Kill() {
    ::kill(pid_, SIGKILL);
    Wait();
  }
  void EndInput() { input_.Reset(); }
  int Wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  Descriptor input_;
  Descriptor output_;
};

talweg_tensor DeclareOne(talweg_client* client, const char* name = "t") {
  talweg_tensor tensor = 0;
  REQUIRE(talweg_declare(client, name, TALWEG_I32, TALWEG_SUM, 0, 1, 0, kGenerousNs, &tensor) ==
          TALWEG_OK);
  return tensor;
}

talweg_round PushOne(talweg_client* client, talweg_tensor tensor, int32_t value = 1) {
  talweg_round round = 0;
  REQUIRE(talweg_push_pull(client, tensor, &value, 0, kGenerousNs, &round) == TALWEG_OK);
  return round;
}

// Polls for as long as the round is open. Returns its status then.
talweg_status PollUntilOver(talweg_client* client, talweg_tensor tensor, talweg_round round) {
  talweg_status status = TALWEG_PENDING;
  while (status == TALWEG_PENDING) status = talweg_poll(client, tensor, round);
  return status;
}

// Threads that wait without limit: four for a round, and one for a declaration of "never agreed".
class Waiters {
 public:
  static constexpr int kCount = 5;

  Waiters(talweg_client* client, talweg_tensor tensor, talweg_round round) {
    for (int i = 0; i < kCount - 1; ++i) {
      threads_.emplace_back([=, this] {
        if (talweg_wait(client, tensor, round, nullptr, -1) == TALWEG_AGENT_LOST) ++told_;
      });
    }
    threads_.emplace_back([=, this] {
      talweg_tensor unused = 0;
      if (talweg_declare(client, "never agreed", TALWEG_F32, TALWEG_SUM, 0, 1, 0, -1, &unused) ==
          TALWEG_AGENT_LOST) {
        ++told_;
      }
    });
  }
  // Waits until all threads have ended. Returns how many got the error that the agent is lost.
  int Told() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    return told_;
  }

 private:
  std::atomic<int> told_{0};
  std::vector<std::thread> threads_;
};

TEST_CASE("When the agent dies every wait ends at once") {
  const TestDirectory directory;
  FakeAgent::Options options = AgentOptions(directory, 1);
  options.holds_rounds = true;
  options.unanswered_name = "never agreed";
  auto agent = std::make_unique<FakeAgent>(options);
  const TestClient client(agent->socket_path(), 0);
  const talweg_tensor tensor = DeclareOne(client.get());
  const talweg_round round = PushOne(client.get(), tensor);
  talweg_tensor none = 0;
  CHECK(talweg_declare(client.get(), "never agreed", TALWEG_F32, TALWEG_SUM, 0, 1, 0, 5'000'000,
                       &none) == TALWEG_TIMEOUT);
  CHECK_THAT(talweg_last_error(), Contains("'never agreed'") && Contains("0.005"));
  const uint64_t slept_before = WaitsSlept(client.get());
  Waiters waiters(client.get(), tensor, round);
  AwaitSleepers(client.get(), slept_before, Waiters::kCount);
  agent.reset();
  CHECK(waiters.Told() == Waiters::kCount);
  CHECK(talweg_wait(client.get(), tensor, round, nullptr, -1) == TALWEG_AGENT_LOST);
  CHECK_THAT(talweg_last_error(), Contains(directory.Path("agent.sock")) && Contains("ended"));
  CHECK(talweg_poll(client.get(), tensor, round) == TALWEG_AGENT_LOST);
  CHECK(talweg_health(client.get()) == TALWEG_AGENT_LOST);
  talweg_tensor unused = 0;
  CHECK(talweg_declare(client.get(), "x", TALWEG_F32, TALWEG_SUM, 0, 1, 0, -1, &unused) ==
        TALWEG_AGENT_LOST);
}

TEST_CASE("When the agent is stopped every wait ends") {
  const TestDirectory directory;
  FakeAgent::Options options = AgentOptions(directory, 1);
  options.server.silence_ms = 2'000;
  options.unanswered_name = "never agreed";
  options.holds_rounds = true;
  FakeAgent agent(options);
  const TestClient client(agent.socket_path(), 0);
  const talweg_tensor tensor = DeclareOne(client.get());
  const talweg_round round = PushOne(client.get(), tensor);
  agent.Pause();
  CHECK(Waiters(client.get(), tensor, round).Told() == Waiters::kCount);
  CHECK(talweg_poll(client.get(), tensor, round) == TALWEG_AGENT_LOST);
  CHECK_THAT(talweg_last_error(), Contains(directory.Path("agent.sock")) &&
                                      Contains("is stopped, or hangs") && Contains("2.0 s"));
  // If the agent goes on, it finds its rank gone.
  agent.Resume();
  agent.WaitUntil([](const FakeAgent::Seen& seen) { return seen.gone_unclean == 1; });
}

TEST_CASE("A rank that only polls learns that the agent is stopped") {
  const TestDirectory directory;
  FakeAgent::Options options = AgentOptions(directory, 1);
  options.server.silence_ms = 2'000;
  options.holds_rounds = true;
  FakeAgent agent(options);
  const TestClient client(agent.socket_path(), 0);
  const talweg_tensor tensor = DeclareOne(client.get());
  const talweg_round round = PushOne(client.get(), tensor);
  agent.Pause();
  CHECK(PollUntilOver(client.get(), tensor, round) == TALWEG_AGENT_LOST);
}

TEST_CASE("A rank that only polls learns of the agent's death") {
  const TestDirectory directory;
  FakeAgent::Options options = AgentOptions(directory, 1);
  options.holds_rounds = true;
  auto agent = std::make_unique<FakeAgent>(options);
  const TestClient client(agent->socket_path(), 0);
  const talweg_tensor tensor = DeclareOne(client.get());
  const talweg_round round = PushOne(client.get(), tensor);
  CHECK(talweg_poll(client.get(), tensor, round) == TALWEG_PENDING);
  agent.reset();
  CHECK(PollUntilOver(client.get(), tensor, round) == TALWEG_AGENT_LOST);
}

TEST_CASE("A rank that is killed fails the others' waits, with its pid in the text") {
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, 2));
  for (const char* what : {"hold", "fork"}) {
    SECTION(what) {
      RankProcess process(agent.socket_path(), 1, what);
      REQUIRE(process.ReadLine() != "");
      const TestClient client(agent.socket_path(), 0);
      const talweg_tensor tensor = DeclareOne(client.get());
      const talweg_round round = std::string(what) == "hold" ? 0 : PushOne(client.get(), tensor);
      const pid_t pid = process.pid();
      process.Kill();
      agent.WaitUntil([](const FakeAgent::Seen& seen) { return seen.gone_unclean == 1; });
      CHECK_THAT(agent.seen().last_gone, Contains("local rank 1") &&
                                             Contains("pid " + std::to_string(pid)) &&
                                             Contains("rank_process"));
      if (round != 0) {
        CHECK(talweg_wait(client.get(), tensor, round, nullptr, -1) == TALWEG_JOB_FAILED);
      } else {
        talweg_round unused = 0;
        CHECK(talweg_push_pull(client.get(), tensor, nullptr, 0, -1, &unused) == TALWEG_JOB_FAILED);
      }
      CHECK_THAT(talweg_last_error(), Contains("pid " + std::to_string(pid)));
      CHECK(talweg_health(client.get()) == TALWEG_JOB_FAILED);
      const TestClient late(agent.socket_path(), 1);
      CHECK(late.status() == TALWEG_JOB_FAILED);
      CHECK_THAT(late.error(), Contains("pid " + std::to_string(pid)));
      // A failed job's rank may still say goodbye.
      CHECK(talweg_shutdown(client.get(), kGenerousNs) == TALWEG_OK);
      agent.WaitUntil([](const FakeAgent::Seen& seen) { return seen.gone_clean == 1; });
    }
  }
}

TEST_CASE("Ranks in processes of their own sum with each other and leave cleanly") {
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, 3));
  std::vector<std::unique_ptr<RankProcess>> processes;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    processes.push_back(std::make_unique<RankProcess>(agent.socket_path(), rank, "rounds"));
  }
  for (auto& process : processes) CHECK(process->Wait() == 0);
  agent.WaitUntil([](const FakeAgent::Seen& seen) { return seen.gone_clean == 3; });
  CHECK(agent.seen().pushes == 30);
}

TEST_CASE("A failed job ends waits and declarations, and later calls get its error") {
  const TestDirectory directory;
  FakeAgent::Options options = AgentOptions(directory, 2);
  options.holds_rounds = true;
  FakeAgent agent(options);
  const TestClient client(agent.socket_path(), 0);
  const talweg_tensor tensor = DeclareOne(client.get());
  const talweg_round round = PushOne(client.get(), tensor);
  const uint64_t slept_before = WaitsSlept(client.get());
  std::atomic<int> status{-1};
  std::thread waiter([&] { status = talweg_wait(client.get(), tensor, round, nullptr, -1); });
  AwaitSleepers(client.get(), slept_before, 1);
  agent.FailAll(shm::RankStatus::kJobFailed, "agent of node 1 (host-b) closed its connection");
  waiter.join();
  CHECK(status == TALWEG_JOB_FAILED);
  CHECK(talweg_wait(client.get(), tensor, round, nullptr, 0) == TALWEG_JOB_FAILED);
  CHECK_THAT(talweg_last_error(), Contains("agent of node 1 (host-b) closed its connection"));
  const TestClient late(agent.socket_path(), 1);
  CHECK(late.status() == TALWEG_JOB_FAILED);
  CHECK_THAT(late.error(), Contains("host-b"));
}

TEST_CASE("An aborted round is over for all ranks, whether they had pushed it or not") {
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, 2));
  const TestClient zero(agent.socket_path(), 0);
  const TestClient one(agent.socket_path(), 1);
  const talweg_tensor tensor = DeclareOne(zero.get());
  REQUIRE(DeclareOne(one.get()) == tensor);
  PushOne(zero.get(), tensor);
  agent.WaitUntil([](const FakeAgent::Seen& seen) { return seen.pushes == 1; });
  agent.AbortRound("t", shm::RankStatus::kAborted, "rank 7, the root, is gone");
  CHECK(talweg_wait(zero.get(), tensor, 1, nullptr, kGenerousNs) == TALWEG_ABORTED);
  CHECK_THAT(talweg_last_error(), Contains("'t'") && Contains("round 1") && Contains("rank 7"));
  const void* data = nullptr;
  CHECK(talweg_result(zero.get(), tensor, 1, &data, nullptr) == TALWEG_ABORTED);
  PushOne(one.get(), tensor);
  CHECK(talweg_wait(one.get(), tensor, 1, nullptr, kGenerousNs) == TALWEG_ABORTED);
  PushOne(zero.get(), tensor, 3);
  PushOne(one.get(), tensor, 4);
  int32_t sum = 0;
  CHECK(talweg_wait(zero.get(), tensor, 2, &sum, kGenerousNs) == TALWEG_OK);
  CHECK(sum == 7);
  CHECK(talweg_wait(one.get(), tensor, 2, &sum, kGenerousNs) == TALWEG_OK);
}

TEST_CASE("A shutdown ends the waits of other threads") {
  const TestDirectory directory;
  FakeAgent::Options options = AgentOptions(directory, 1);
  options.holds_rounds = true;
  FakeAgent agent(options);
  const TestClient client(agent.socket_path(), 0);
  const talweg_tensor tensor = DeclareOne(client.get());
  const talweg_round round = PushOne(client.get(), tensor);
  const uint64_t slept_before = WaitsSlept(client.get());
  std::vector<std::thread> threads;
  std::atomic<int> closed{0};
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      if (talweg_wait(client.get(), tensor, round, nullptr, -1) == TALWEG_CLOSED) ++closed;
    });
  }
  AwaitSleepers(client.get(), slept_before, 3);
  CHECK(talweg_shutdown(client.get(), kGenerousNs) == TALWEG_OK);
  for (std::thread& thread : threads) thread.join();
  CHECK(closed == 3);
  CHECK(talweg_shutdown(client.get(), kGenerousNs) == TALWEG_OK);  // The repetition has no effect.
}

TEST_CASE("A shutdown that the agent does not answer ends in time") {
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, 1));
  const TestClient client(agent.socket_path(), 0);
  agent.Pause();
  CHECK(talweg_shutdown(client.get(), 10'000'000) == TALWEG_TIMEOUT);
  CHECK(talweg_health(client.get()) == TALWEG_CLOSED);
  agent.Resume();
}

// Returns how many of this process's descriptors are sockets.
int SocketCount() {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    struct stat file {};
    if (::fstat(fd, &file) == 0 && S_ISSOCK(file.st_mode)) ++count;
  }
  return count;
}

TEST_CASE("A forked child gets an error, and the parent goes on") {
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, 1));
  const TestClient client(agent.socket_path(), 0);
  const talweg_tensor tensor = DeclareOne(client.get());
  void* contribution = talweg_contribution(client.get(), tensor);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // The child may not use Catch. Its exit status names the first check that failed.
    int checked = 0;
    const auto check = [&checked](bool right) {
      ++checked;
      if (!right) ::_exit(checked);
    };
    const int sockets = SocketCount();
    talweg_round round = 0;
    talweg_tensor unused = 0;
    const void* data = nullptr;
    const int32_t value = 9;
    check(talweg_push_pull(client.get(), tensor, &value, 0, 0, &round) == TALWEG_FORKED);
    check(std::strstr(talweg_last_error(), "is a fork") != nullptr);
    // The agent will see the parent's end though this process goes on.
    check(SocketCount() == sockets - 1);
    check(talweg_wait(client.get(), tensor, 1, nullptr, 0) == TALWEG_FORKED);
    check(talweg_declare(client.get(), "x", TALWEG_I32, TALWEG_SUM, 0, 1, 0, 0, &unused) ==
          TALWEG_FORKED);
    check(talweg_result(client.get(), tensor, 1, &data, nullptr) == TALWEG_FORKED);
    check(talweg_health(client.get()) == TALWEG_FORKED);
    check(talweg_contribution(client.get(), tensor) == nullptr);
    // The parent's contributions are not even mapped.
    unsigned char present = 0;
    void* page =
        reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(contribution) & ~uintptr_t{4095});
    check(::mincore(page, 4096, &present) != 0);
    talweg_free(client.get());
    check(SocketCount() == sockets - 1);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  const talweg_round round = PushOne(client.get(), tensor, 5);
  int32_t out = 0;
  CHECK(talweg_wait(client.get(), tensor, round, &out, kGenerousNs) == TALWEG_OK);
  CHECK(out == 5);
  CHECK(agent.seen().gone_unclean == 0);
}

TEST_CASE("A rank cannot make results writable") {
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, 1));
  const TestClient client(agent.socket_path(), 0);
  const talweg_tensor tensor = DeclareOne(client.get());
  const talweg_round round = PushOne(client.get(), tensor);
  REQUIRE(talweg_wait(client.get(), tensor, round, nullptr, kGenerousNs) == TALWEG_OK);
  const void* data = nullptr;
  REQUIRE(talweg_result(client.get(), tensor, round, &data, nullptr) == TALWEG_OK);
  void* page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(data) & ~uintptr_t{4095});
  CHECK(::mprotect(page, 4096, PROT_READ | PROT_WRITE) != 0);
}

}  // namespace
}  // namespace talweg::c
