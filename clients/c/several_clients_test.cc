// SPDX-License-Identifier: Apache-2.0

// Several clients in one process, of one job or of several jobs. Several threads use each, and some
// clients come, leave and die meanwhile.

#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <memory>
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

constexpr uint32_t kRanks = 2;

FakeAgent::Options JobOptions(const TestDirectory& directory, const std::string& job,
                              uint32_t ranks = kRanks) {
  FakeAgent::Options options = AgentOptions(directory, ranks);
  options.job_name = job;
  return options;
}

// A job of one rank, and its client.
struct Job {
  explicit Job(const std::string& name)
      : agent(JobOptions(directory, name, 1)), client(agent.socket_path(), 0) {}

  TestDirectory directory;
  FakeAgent agent;
  TestClient client;
};

// Only the test's thread may use Catch's checks. Other threads return what went wrong, or "".
std::string Text(talweg_status status) {
  return std::string(talweg_status_name(status)) + ": " + talweg_last_error();
}

class Threads {
 public:
  void Start(std::function<std::string()> body) {
    const size_t number = errors_.size();
    errors_.push_back(std::make_unique<std::string>());
    std::string* const error = errors_[number].get();
    threads_.emplace_back([error, body = std::move(body)] { *error = body(); });
  }
  // Returns what the threads returned, except for "".
  std::string Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    std::string all;
    for (const auto& error : errors_) all += *error;
    return all;
  }

 private:
  std::vector<std::unique_ptr<std::string>> errors_;
  std::vector<std::thread> threads_;
};

// One thread's rounds of its own tensor. Rank r contributes (r + 1) * factor * round.
class Rounds {
 public:
  Rounds(talweg_client* client, std::string name, int64_t factor)
      : client_(client), name_(std::move(name)), factor_(factor) {}

  std::string Run(int count) {
    std::string bad;
    for (int i = 0; i < count && bad.empty(); ++i) bad = RunOne();
    return bad;
  }

  std::string RunOne() {
    if (round_ == 0) {
      const talweg_status declared = talweg_declare(client_, name_.c_str(), TALWEG_I64, TALWEG_SUM,
                                                    0, kCount, 0, kGenerousNs, &tensor_);
      if (declared != TALWEG_OK) return Text(declared);
    }
    const int64_t expected_round = static_cast<int64_t>(round_) + 1;
    const int64_t own = (talweg_rank(client_) + 1) * factor_ * expected_round;
    std::vector<int64_t> values(kCount, own);
    talweg_status status = talweg_push_pull(client_, tensor_, values.data(),
                                            TALWEG_DECLARED_PRIORITY, kGenerousNs, &round_);
    if (status == TALWEG_OK) {
      status = talweg_wait(client_, tensor_, round_, values.data(), kGenerousNs);
    }
    if (status != TALWEG_OK) return Text(status);
    const int64_t ranks = talweg_size(client_);
    const int64_t sum = ranks * (ranks + 1) / 2 * factor_ * expected_round;
    if (values != std::vector<int64_t>(kCount, sum)) {
      return talweg_job_name(client_) +
             (": '" + name_ + "' is not the sum of its job's ranks in ") + "round " +
             std::to_string(round_) + "; ";
    }
    return "";
  }

 private:
  static constexpr size_t kCount = 1000;

  talweg_client* client_;
  std::string name_;
  int64_t factor_;
  talweg_tensor tensor_ = 0;
  talweg_round round_ = 0;
};

int OpenDescriptors() {
  int count = 0;
  DIR* const directory = ::opendir("/proc/self/fd");
  REQUIRE(directory != nullptr);
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

int TalwegMappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:") != std::string::npos) ++count;
  }
  return count;
}

TEST_CASE("Clients of three jobs, each used by several threads, get their own job's sums") {
  constexpr int kJobs = 3;
  constexpr int kThreadsAClient = 3;
  std::vector<std::unique_ptr<TestDirectory>> directories;
  std::vector<std::unique_ptr<FakeAgent>> agents;
  std::vector<TestClient> clients;
  for (int job = 0; job < kJobs; ++job) {
    directories.push_back(std::make_unique<TestDirectory>());
    agents.push_back(
        std::make_unique<FakeAgent>(JobOptions(*directories[job], "job" + std::to_string(job))));
  }
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    for (const auto& agent : agents) {
      clients.emplace_back(agent->socket_path(), rank);
      REQUIRE(clients.back().error() == "");
    }
  }
  Threads threads;
  for (size_t i = 0; i < clients.size(); ++i) {
    for (int thread = 0; thread < kThreadsAClient; ++thread) {
      threads.Start([client = clients[i].get(), thread, factor = i % kJobs * 1000 + 1] {
        return Rounds(client, "t" + std::to_string(thread), static_cast<int64_t>(factor)).Run(100);
      });
    }
  }
  CHECK(threads.Join() == "");
  for (size_t i = 0; i < clients.size(); ++i) {
    CHECK(std::string(talweg_job_name(clients[i].get())) == "job" + std::to_string(i % kJobs));
    talweg_statistics statistics{.struct_bytes = sizeof(talweg_statistics)};
    REQUIRE(talweg_get_statistics(clients[i].get(), &statistics) == TALWEG_OK);
    CHECK(statistics.tensors == kThreadsAClient);
    CHECK(statistics.pushes == kThreadsAClient * 100);
  }
}

TEST_CASE("A job that dies takes only its own clients along") {
  const TestDirectory directory;
  const TestDirectory of_orphans;
  const TestDirectory of_survivors;
  FakeAgent agent(JobOptions(directory, "loses a rank"));
  auto killed_agent = std::make_unique<FakeAgent>(JobOptions(of_orphans, "loses its agent"));
  FakeAgent surviving_agent(JobOptions(of_survivors, "goes on"));
  const TestClient waiting(agent.socket_path(), 0);
  TestClient dying(agent.socket_path(), 1);
  const TestClient orphan(killed_agent->socket_path(), 0);
  const TestClient other_orphan(killed_agent->socket_path(), 1);
  std::vector<TestClient> survivors;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    survivors.emplace_back(surviving_agent.socket_path(), rank);
  }

  // This makes sure that the survivors' rounds go on around both deaths.
  std::atomic<bool> deaths_are_over{false};
  Threads working;
  for (const TestClient& survivor : survivors) {
    working.Start([&, client = survivor.get()]() -> std::string {
      Rounds rounds(client, "t", 1);
      for (bool over = false; !over;) {
        if (std::string bad = rounds.Run(10); bad != "") return bad;
        // Both ranks stop after the same round.
        talweg_tensor tensor = 0;
        talweg_round round = 0;
        int32_t value = deaths_are_over.load() ? 1 : 0;
        talweg_status status =
            talweg_declare(client, "stop", TALWEG_I32, TALWEG_MIN, 0, 1, 0, kGenerousNs, &tensor);
        if (status == TALWEG_OK) {
          status = talweg_push_pull(client, tensor, &value, 0, kGenerousNs, &round);
        }
        if (status == TALWEG_OK) status = talweg_wait(client, tensor, round, &value, kGenerousNs);
        if (status != TALWEG_OK) return Text(status);
        over = value == 1;
      }
      return rounds.Run(10);
    });
  }
  Threads ending;
  for (const TestClient* client : {&waiting, &orphan}) {
    ending.Start([client] { return Rounds(client->get(), "never", 1).RunOne(); });
  }
  // A declaration is agreed on without the other rank, and the agent sees a push.
  agent.WaitUntil([](const FakeAgent::Seen& seen) { return seen.pushes == 1; });
  killed_agent->WaitUntil([](const FakeAgent::Seen& seen) { return seen.pushes == 1; });

  talweg_free(dying.Release());  // There is no goodbye, though the process lives on.
  killed_agent.reset();
  const std::string ended = ending.Join();
  CHECK_THAT(ended, Contains("job failed") && Contains("never") && Contains("rank 1"));
  CHECK_THAT(ended, Contains("agent lost") && Contains(of_orphans.Path("agent.sock")));
  deaths_are_over = true;
  CHECK(working.Join() == "");

  CHECK(talweg_health(waiting.get()) == TALWEG_JOB_FAILED);
  CHECK(talweg_health(other_orphan.get()) == TALWEG_AGENT_LOST);
  for (TestClient& survivor : survivors) {
    CHECK(talweg_health(survivor.get()) == TALWEG_OK);
    CHECK(talweg_shutdown(survivor.get(), kGenerousNs) == TALWEG_OK);
  }
  surviving_agent.WaitUntil([](const FakeAgent::Seen& seen) { return seen.gone_clean == 2; });
  CHECK(surviving_agent.seen().gone_unclean == 0);
}

TEST_CASE("Clients that come and go leave nothing, and leave others alone") {
  const TestDirectory directory;
  const TestDirectory of_guests;
  FakeAgent agent(JobOptions(directory, "stays"));
  FakeAgent guests(JobOptions(of_guests, "changes", 1));
  std::vector<TestClient> clients;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    clients.emplace_back(agent.socket_path(), rank);
    REQUIRE(clients.back().error() == "");
  }
  const auto come_and_go = [&]() -> std::string {
    const TestClient guest(guests.socket_path(), 0);
    if (guest.status() != TALWEG_OK) return guest.error();
    return Rounds(guest.get(), "t", 1).Run(3);
  };
  Threads first;
  for (const TestClient& client : clients) {
    first.Start([&] { return Rounds(client.get(), "first", 1).Run(1); });
  }
  CHECK(first.Join() == "");
  CHECK(come_and_go() == "");
  // The agents live in this process too, and drop a client a little later than it drops them.
  guests.WaitUntil([](const FakeAgent::Seen& seen) { return seen.gone_clean == 1; });
  const int descriptors = OpenDescriptors();
  const int mappings = TalwegMappings();
  Threads threads;
  for (const TestClient& client : clients) {
    threads.Start([&] { return Rounds(client.get(), "second", 7).Run(300); });
  }
  threads.Start([&]() -> std::string {
    for (int life = 0; life < 50; ++life) {
      if (std::string bad = come_and_go(); bad != "") return bad;
    }
    return "";
  });
  CHECK(threads.Join() == "");
  guests.WaitUntil([](const FakeAgent::Seen& seen) { return seen.gone_clean == 51; });
  CHECK(OpenDescriptors() == descriptors);
  CHECK(TalwegMappings() == mappings);
}

TEST_CASE("An error's text belongs to its thread, whichever client it is about") {
  const Job a("a");
  const Job b("b");
  const std::string before = talweg_last_error();
  Threads threads;
  for (const auto& [of, name] : {std::pair{&a, "in a"}, std::pair{&b, "in b"}}) {
    for (int thread = 0; thread < 2; ++thread) {
      const std::string own = std::string(name) + " by " + std::to_string(thread);
      threads.Start([own, client = of->client.get()]() -> std::string {
        for (int i = 0; i < 2000; ++i) {
          talweg_tensor tensor = 0;
          if (talweg_declare(client, own.c_str(), TALWEG_I32, TALWEG_AVERAGE, 0, 1, 0, kGenerousNs,
                             &tensor) != TALWEG_INVALID_ARGUMENT) {
            return "an average of integers was declared; ";
          }
          const std::string text = talweg_last_error();
          if (text.find("'" + own + "'") == std::string::npos) return own + " was told: " + text;
        }
        return "";
      });
    }
  }
  CHECK(threads.Join() == "");
  CHECK(std::string(talweg_last_error()) == before);
}

TEST_CASE("A forked child has none of its parent's clients, and the parent keeps all") {
  const Job a("a");
  const Job b("b");
  Rounds of_a(a.client.get(), "t", 1);
  Rounds of_b(b.client.get(), "t", 1000);
  REQUIRE(of_a.Run(2) + of_b.Run(2) == "");
  const pid_t child = ::fork();
  if (child == 0) {
    int forked = 0;
    for (const Job* job : {&a, &b}) {
      forked += talweg_health(job->client.get()) == TALWEG_FORKED ? 1 : 0;
    }
    ::_exit(forked);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 2);
  CHECK(of_a.Run(2) + of_b.Run(2) == "");
}

}  // namespace
}  // namespace talweg::c
