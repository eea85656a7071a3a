// SPDX-License-Identifier: Apache-2.0
// An agent that serves a whole job alone. Its ranks use the C ABI.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "clients/c/talweg.h"
#include "tests/integration/running_agent.h"

namespace talweg::integration {
namespace {

constexpr int64_t kGenerousNs = 120'000'000'000;

struct Rank {
  explicit Rank(const std::string& socket, uint32_t local_rank = TALWEG_ANY_LOCAL_RANK) {
    talweg_options options;
    talweg_options_init(&options);
    options.agent_socket = socket.c_str();
    options.local_rank = local_rank;
    options.timeout_ns = kGenerousNs;
    options.agent_wait_ns = kGenerousNs;
    status = talweg_connect(&options, &client);
    if (status != TALWEG_OK) error = talweg_last_error();
  }
  ~Rank() {
    if (client != nullptr) talweg_shutdown(client, kGenerousNs);
    talweg_free(client);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  uint32_t number() const { return talweg_rank(client); }
  talweg_status Declare(const std::string& name, talweg_dtype dtype, talweg_op op, uint64_t count,
                        talweg_tensor* tensor, uint32_t root = 0) {
    return Keep(
        talweg_declare(client, name.c_str(), dtype, op, root, count, 0, kGenerousNs, tensor));
  }
  talweg_status DeclareInPlace(const std::string& name, talweg_dtype dtype, talweg_op op,
                               uint64_t count, talweg_tensor* tensor) {
    const talweg_declaration declaration{name.c_str(), dtype, op, 0, 0, count};
    return Keep(talweg_declare_all_in_place(client, &declaration, 1, kGenerousNs, tensor));
  }
  talweg_status PushPull(talweg_tensor tensor, const void* data, void* out) {
    talweg_round round;
    const talweg_status pushed =
        Keep(talweg_push_pull(client, tensor, data, TALWEG_DECLARED_PRIORITY, kGenerousNs, &round));
    if (pushed != TALWEG_OK) return pushed;
    return Keep(talweg_wait(client, tensor, round, out, kGenerousNs));
  }
  talweg_status Keep(talweg_status result) {
    if (result != TALWEG_OK) error = talweg_last_error();
    return result;
  }

  talweg_client* client = nullptr;
  talweg_status status = TALWEG_INTERNAL;
  std::string error;
};

config::AgentConfig Alone(uint32_t rank_count) {
  config::AgentConfig config;
  config.standalone = true;
  config.job = "alone";
  config.rank_count = rank_count;
  config.log_level = "warning";
  return config;
}

TEST_CASE("Agent: a timeline takes no more memory than the agent's configuration allows",
          "[agent]") {
  config::AgentConfig config = Alone(1);
  config.trace_bytes_max = kMiB;
  const RunningAgent agent(config);
  rpc::AgentAdminClient client(agent.admin_address(), kGenerousNs);
  agent::v1::SetTraceRequest request;
  request.set_enabled(true);
  request.set_buffer_bytes(kMiB + 1);
  const absl::Status refused = client.SetTrace(request);
  CHECK(refused.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(refused.message()),
             Catch::Contains("buffer_bytes=1048577 is more than the agent's "
                             "trace_bytes_max=1048576"));
  CHECK_FALSE(agent.Status().tracing());
  request.set_buffer_bytes(kMiB);
  CHECK(client.SetTrace(request).ok());
  CHECK(agent.Status().tracing());
  request.set_buffer_bytes(0);
  CHECK(client.SetTrace(request).ok());
}

TEST_CASE("Agent: whoever switches a timeline on or off proves that it knows the job secret",
          "[agent]") {
  const std::string secret(64, 's');
  const RunningAgent agent(Alone(1), 0, secret);
  rpc::AgentAdminClient client(agent.admin_address(), kGenerousNs);
  agent::v1::SetTraceRequest request;
  request.set_enabled(true);
  const auto refused = [&](const std::string& own, const std::string& text) {
    const absl::Status status = client.SetTrace(request, own);
    CHECK(status.code() == absl::StatusCode::kPermissionDenied);
    CHECK_THAT(std::string(status.message()), Catch::Contains(text));
    CHECK_FALSE(agent.Status().tracing());
  };
  refused("",
          "the agent refuses who asks for a timeline, which shows no job secret; give it a copy of "
          "the agent's secret file");
  refused(std::string(64, 't'), "does not prove that it knows the job secret");
  CHECK(client.SetTrace(request, secret).ok());
  CHECK(agent.Status().tracing());
  // The words of a refusal come back through the seal.
  request.set_buffer_bytes(uint64_t{1} << 40);
  CHECK_THAT(std::string(client.SetTrace(request, secret).message()),
             Catch::Contains("is more than the agent's trace_bytes_max"));
}

TEST_CASE("Agent: one without a job secret says so to a caller that has one", "[agent]") {
  const RunningAgent agent(Alone(1));
  rpc::AgentAdminClient client(agent.admin_address(), kGenerousNs);
  const absl::Status refused = client.SetTrace({}, std::string(64, 's'));
  CHECK(refused.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(refused.message()), Catch::Contains("the agent has no job secret"));
}

TEST_CASE("Agent: with trace_bytes_max=0 nobody switches a timeline on", "[agent]") {
  config::AgentConfig config = Alone(1);
  config.trace_bytes_max = 0;
  const RunningAgent agent(config);
  rpc::AgentAdminClient client(agent.admin_address(), kGenerousNs);
  agent::v1::SetTraceRequest request;
  CHECK(client.SetTrace(request).ok());
  request.set_enabled(true);
  const absl::Status refused = client.SetTrace(request);
  CHECK(refused.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(refused.message()), Catch::Contains("its trace_bytes_max is 0"));
  CHECK_FALSE(agent.Status().tracing());
}

// Runs `program` as every rank, on threads. Returns the failure as a text, because only one thread
// may use Catch's macros.
std::string RunRanks(const std::string& socket, uint32_t rank_count,
                     const std::function<std::string(Rank&)>& program) {
  std::vector<std::string> failures(rank_count);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < rank_count; ++i) {
    threads.emplace_back([&, i] {
      Rank rank(socket, i);
      failures[i] = rank.status == TALWEG_OK ? program(rank) : rank.error;
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string all;
  for (const std::string& failure : failures) all += failure;
  return all;
}

TEST_CASE("Agent alone: sums, averages and broadcasts are right, twice over", "[agent]") {
  // A few ranks sum themselves. The agent sums for more than kSummingRanksMax.
  const uint32_t ranks = GENERATE(3u, 9u);
  RunningAgent agent(Alone(ranks));
  for (int generation = 0; generation < 2; ++generation) {
    CHECK(RunRanks(agent.socket_path(), ranks, [ranks](Rank& rank) -> std::string {
            constexpr size_t kCount = 700'001;  // Several slices, and an odd end.
            const auto n = static_cast<int32_t>(ranks);
            const int32_t numbers = n * (n - 1) / 2;
            if (talweg_size(rank.client) != ranks) return "size";
            talweg_tensor sum = 0, average = 0, bytes = 0;
            if (rank.Declare("sum", TALWEG_I32, TALWEG_SUM, kCount, &sum) != TALWEG_OK ||
                rank.Declare("average", TALWEG_F32, TALWEG_AVERAGE, 5, &average) != TALWEG_OK ||
                rank.Declare("bytes", TALWEG_U8, TALWEG_BROADCAST, 3, &bytes, 2) != TALWEG_OK) {
              return rank.error;
            }
            for (int32_t round = 1; round <= 5; ++round) {
              std::vector<int32_t> mine(kCount), result(kCount);
              std::iota(mine.begin(), mine.end(), static_cast<int32_t>(rank.number()) * round);
              if (rank.PushPull(sum, mine.data(), result.data()) != TALWEG_OK) return rank.error;
              for (size_t i = 0; i < kCount; ++i) {
                if (result[i] != n * static_cast<int32_t>(i) + numbers * round) return "wrong sum";
              }
              const std::vector<float> values(5, static_cast<float>(rank.number() + 1));
              std::vector<float> mean(5);
              if (rank.PushPull(average, values.data(), mean.data()) != TALWEG_OK) {
                return rank.error;
              }
              if (mean != std::vector<float>(5, static_cast<float>(n + 1) / 2))
                return "wrong average";
              const auto own = static_cast<uint8_t>(rank.number() + 10);
              const std::vector<uint8_t> sent = {own, 0, 255};
              std::vector<uint8_t> got(3);
              if (rank.PushPull(bytes, sent.data(), got.data()) != TALWEG_OK) return rank.error;
              if (got != std::vector<uint8_t>{12, 0, 255}) return "wrong broadcast";
            }
            return "";
          }) == "");
    agent.WaitForRestart(static_cast<uint64_t>(generation) + 1);
  }
  CHECK(agent.Stop().ok());
}

TEST_CASE("Agent alone: tensors in place are right whoever sums, twice over", "[agent]") {
  const uint32_t ranks = GENERATE(2u, 9u);
  RunningAgent agent(Alone(ranks));
  for (int generation = 0; generation < 2; ++generation) {
    CHECK(RunRanks(agent.socket_path(), ranks, [ranks](Rank& rank) -> std::string {
            constexpr size_t kCount = 300'001;
            // The tensors have one size, because places are used again by their kind.
            talweg_tensor apart = 0, tensor = 0;
            if (rank.DeclareInPlace("in place", TALWEG_I32, TALWEG_SUM, kCount, &tensor) !=
                    TALWEG_OK ||
                rank.Declare("apart", TALWEG_I32, TALWEG_SUM, kCount, &apart) != TALWEG_OK) {
              return rank.error;
            }
            if (talweg_sums_in_place(rank.client, tensor) != (ranks == 2 ? 1 : 0)) return "who";
            auto* const own = static_cast<int32_t*>(talweg_contribution(rank.client, tensor));
            std::vector<int32_t> expected(kCount, static_cast<int32_t>(ranks * (ranks + 1) / 2));
            std::fill_n(own, kCount, static_cast<int32_t>(rank.number() + 1));
            for (int round = 0; round < 5; ++round) {
              std::vector<int32_t> mine(own, own + kCount), result(kCount);
              if (rank.PushPull(apart, mine.data(), result.data()) != TALWEG_OK ||
                  rank.PushPull(tensor, nullptr, nullptr) != TALWEG_OK) {
                return rank.error;
              }
              if (result != expected || !std::equal(result.begin(), result.end(), own)) {
                return "wrong sum";
              }
              for (int32_t& value : expected) value *= static_cast<int32_t>(ranks);
            }
            return "";
          }) == "");
    agent.WaitForRestart(static_cast<uint64_t>(generation) + 1);
  }
  CHECK(agent.Stop().ok());
}

TEST_CASE("Agent alone: the first to declare a tensor says whether it is summed in place",
          "[agent]") {
  RunningAgent agent(Alone(2));
  Rank first(agent.socket_path(), 0), second(agent.socket_path(), 1);
  talweg_tensor a = 0, b = 0;
  REQUIRE(first.DeclareInPlace("a", TALWEG_F32, TALWEG_SUM, 4, &a) == TALWEG_OK);
  REQUIRE(first.Declare("b", TALWEG_F32, TALWEG_SUM, 4, &b) == TALWEG_OK);
  CHECK(second.Declare("a", TALWEG_F32, TALWEG_SUM, 4, &a) == TALWEG_OK);
  CHECK(talweg_sums_in_place(second.client, a) == 1);
  CHECK(second.DeclareInPlace("b", TALWEG_F32, TALWEG_SUM, 4, &b) == TALWEG_UNSUPPORTED);
}

TEST_CASE("Agent alone: ranks that disagree both hear what each said", "[agent]") {
  RunningAgent agent(Alone(2));
  CHECK(RunRanks(agent.socket_path(), 2, [](Rank& rank) -> std::string {
          talweg_tensor tensor = 0;
          talweg_status status =
              rank.Declare("w", TALWEG_F32, TALWEG_SUM, rank.number() == 0 ? 4 : 5, &tensor);
          if (status == TALWEG_OK) {
            std::vector<float> data(5);
            status = rank.PushPull(tensor, data.data(), data.data());
          }
          if (status != TALWEG_MISMATCH) return "status " + std::to_string(status);
          if (rank.error.find("f32[4]") == std::string::npos ||
              rank.error.find("f32[5]") == std::string::npos) {
            return "text: " + rank.error;
          }
          return "";
        }) == "");
  CHECK(agent.Stop().ok());
}

TEST_CASE("Agent alone: a rank that is killed fails the others at once, and the text names it",
          "[agent]") {
  RunningAgent agent(Alone(2));
  auto rank = std::make_unique<Rank>(agent.socket_path(), 0);
  REQUIRE(rank->status == TALWEG_OK);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // Besides the library's own calls, the child makes only those that a forked child may make.
    talweg_client* client = nullptr;
    talweg_options options;
    talweg_options_init(&options);
    options.agent_socket = agent.socket_path().c_str();
    options.local_rank = 1;
    talweg_tensor tensor = 0;
    if (talweg_connect(&options, &client) == TALWEG_OK &&
        talweg_declare(client, "w", TALWEG_F32, TALWEG_SUM, 0, 4, 0, kGenerousNs, &tensor) ==
            TALWEG_OK) {
      kill(getpid(), SIGKILL);
    }
    _exit(1);
  }
  talweg_tensor tensor = 0;
  talweg_status status = rank->Declare("w", TALWEG_F32, TALWEG_SUM, 4, &tensor);
  std::vector<float> data(4);
  if (status == TALWEG_OK) status = rank->PushPull(tensor, data.data(), data.data());
  CHECK(status == TALWEG_JOB_FAILED);
  CHECK(rank->error.find("pid " + std::to_string(child)) != std::string::npos);
  rank.reset();
  int how = 0;
  CHECK(waitpid(child, &how, 0) == child);
  CHECK(WIFSIGNALED(how));
  CHECK_FALSE(agent.WaitForEnd().ok());  // The job has failed, and its ranks are gone.
}

TEST_CASE("Agent alone: stopping the agent fails ranks that do not end in time", "[agent]") {
  config::AgentConfig config = Alone(2);
  config.drain_timeout_ms = 50;
  RunningAgent agent(config);
  std::string text;
  std::thread waiting([&] {
    Rank rank(agent.socket_path(), 0);
    talweg_tensor tensor = 0;
    std::vector<float> data(4);
    talweg_status status = rank.Declare("w", TALWEG_F32, TALWEG_SUM, 4, &tensor);
    agent.RequestStop("told to by a test");
    // The rank's partner never comes.
    if (status == TALWEG_OK) status = rank.PushPull(tensor, data.data(), data.data());
    text = rank.error;
  });
  waiting.join();
  CHECK(text.find("told to by a test") != std::string::npos);
  agent.WaitForEnd().IgnoreError();
}

TEST_CASE("Agent alone: a tensor past the limit is refused with the figures", "[agent]") {
  config::AgentConfig config = Alone(1);
  config.arena_bytes_max = 3 * 64 * kMiB;
  RunningAgent agent(config);
  {
    Rank rank(agent.socket_path());
    REQUIRE(rank.status == TALWEG_OK);
    talweg_tensor tensor = 0;
    const talweg_status status = rank.Declare("huge", TALWEG_U8, TALWEG_SUM, 512 * kMiB, &tensor);
    CHECK(status == TALWEG_OUT_OF_MEMORY);
    CHECK(rank.error.find("MiB") != std::string::npos);
    CHECK(rank.Declare("small", TALWEG_U8, TALWEG_SUM, 16, &tensor) == TALWEG_OK);
    const uint64_t held = agent.Status().ranks(0).arena_bytes();
    CHECK(held >= 16);
    CHECK(held < 64 * kKiB);
  }
  CHECK(agent.Stop().ok());
}

TEST_CASE("Agent alone: jobs one after the other each have as many tensors as fit", "[agent]") {
  RunningAgent agent(Alone(1));
  constexpr size_t kTensors = 40'000;  // At most 65,536 fit.
  for (uint64_t generation = 1; generation <= 2; ++generation) {
    {
      Rank rank(agent.socket_path());
      REQUIRE(rank.status == TALWEG_OK);
      std::vector<std::string> names(kTensors);
      std::vector<talweg_declaration> declarations(kTensors);
      for (size_t i = 0; i < kTensors; ++i) {
        names[i] = "t" + std::to_string(i);
        declarations[i] = {names[i].c_str(), TALWEG_U8, TALWEG_SUM, 0, 0, 1};
      }
      std::vector<talweg_tensor> tensors(kTensors);
      REQUIRE(talweg_declare_all(rank.client, declarations.data(), kTensors, kGenerousNs,
                                 tensors.data()) == TALWEG_OK);
      const uint8_t byte = 7;
      uint8_t result = 0;
      CHECK(rank.PushPull(tensors.back(), &byte, &result) == TALWEG_OK);
      CHECK(result == byte);
    }
    agent.WaitForRestart(generation);
  }
  CHECK(agent.Stop().ok());
}

TEST_CASE("Agent alone: jobs one after the other each have all the memory", "[agent]") {
  // Two ranks sum themselves, and the agent sums for nine.
  const uint32_t ranks = GENERATE(2u, 9u);
  config::AgentConfig config = Alone(ranks);
  config.arena_bytes_max = uint64_t{ranks + 2} * 8 * kMiB;
  RunningAgent agent(config);
  for (uint64_t generation = 1; generation <= 4; ++generation) {
    CHECK(RunRanks(agent.socket_path(), ranks, [&](Rank& rank) -> std::string {
            // The size differs each time, and takes most of what there is.
            std::vector<uint8_t> data(generation * 4096 + 3 * kMiB, 1);
            talweg_tensor tensor = 0;
            if (rank.Declare("t", TALWEG_U8, TALWEG_SUM, data.size(), &tensor) != TALWEG_OK ||
                rank.PushPull(tensor, data.data(), data.data()) != TALWEG_OK) {
              return rank.error;
            }
            return data.back() == ranks ? "" : "wrong sum";
          }) == "");
    agent.WaitForRestart(generation);
  }
  CHECK(agent.Stop().ok());
}

}  // namespace
}  // namespace talweg::integration
