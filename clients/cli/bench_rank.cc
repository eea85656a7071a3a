// SPDX-License-Identifier: Apache-2.0
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <span>

#include "clients/c/talweg.h"
#include "clients/cli/bench.h"
#include "clients/cli/bench_orders.h"
#include "clients/cli/bench_values.h"
#include "clients/cli/process.h"
#include "libs/rpc/admin_client.h"
#include "libs/status/status.h"

namespace talweg::cli {
namespace {

constexpr int64_t kTimeoutNs = 120'000'000'000;
constexpr int64_t kAdminTimeoutNs = 10'000'000'000;
constexpr uint64_t kWarmUpRounds = 5;
constexpr uint64_t kRoundsMax = 20'000;

struct Shutdown {
  void operator()(talweg_client* client) const { talweg_free(client); }
};
using Client = std::unique_ptr<talweg_client, Shutdown>;

absl::Status Check(talweg_status status, const std::string& what) {
  if (status == TALWEG_OK) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(what, ": ", talweg_status_name(status), ": ", talweg_last_error()));
}

// Returns the numbers, or words, of a comma-separated variable that talweg run sets.
std::vector<std::string> ListVariable(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return {};
  return absl::StrSplit(text, ',');
}

uint64_t CpuNs(clockid_t clock) {
  timespec time;
  if (clock_gettime(clock, &time) != 0) return 0;
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

// Returns the CPU time that this run's daemons have used so far.
uint64_t DaemonCpuNs() {
  uint64_t cpu_ns = 0;
  for (const std::string& pid : ListVariable("TALWEG_RUN_DAEMONS")) {
    clockid_t clock;
    if (clock_getcpuclockid(static_cast<pid_t>(std::strtol(pid.c_str(), nullptr, 10)), &clock) ==
        0) {
      cpu_ns += CpuNs(clock);
    }
  }
  return cpu_ns;
}

// Returns the memory of a process, with its share of memory that several map. 0 if it cannot be
// read.
uint64_t MemoryBytes(const std::string& pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/smaps_rollup"));
  for (std::string word; file >> word;) {
    uint64_t kilobytes = 0;
    if (word == "Pss:" && file >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

// Returns the bytes that this run's agents have sent and received so far.
absl::StatusOr<uint64_t> WireBytes() {
  uint64_t bytes = 0;
  for (const std::string& address : ListVariable("TALWEG_RUN_AGENTS")) {
    rpc::AgentAdminClient agent(address, kAdminTimeoutNs);
    TALWEG_ASSIGN_OR_RETURN(const agent::v1::GetStatusResponse status, agent.GetStatus({}));
    bytes += status.bytes_sent() + status.bytes_received();
  }
  return bytes;
}

struct MeasuringOptions {
  talweg_dtype dtype = TALWEG_F32;
  // Gradients lie in the client's buffers; so do results, if the ranks sum.
  bool in_place = false;
  uint64_t in_flight = 1;
  int64_t wanted_ns = 0;
};

// One size, at one rank.
class Measuring {
 public:
  Measuring(talweg_client* client, const MeasuringOptions& options, uint64_t tensor_bytes)
      : client_(client),
        options_(options),
        count_(std::max<uint64_t>(1, tensor_bytes / talweg_dtype_bytes(options.dtype))),
        contribution_(count_ * talweg_dtype_bytes(options.dtype)),
        result_(contribution_.size()) {
    FillWith(options.dtype, talweg_rank(client) + 1, contribution_);
  }

  absl::StatusOr<BenchMeasurement> Measure() {
    for (uint64_t i = 0; i < options_.in_flight; ++i) {
      talweg_tensor tensor = 0;
      const std::string name = absl::StrCat(Name(), "/", i);
      const talweg_declaration declaration{name.c_str(), options_.dtype, TALWEG_SUM, 0, 0, count_};
      const auto declare = options_.in_place ? talweg_declare_all_in_place : talweg_declare_all;
      TALWEG_RETURN_IF_ERROR(Check(declare(client_, &declaration, 1, kTimeoutNs, &tensor),
                                   absl::StrCat("declare ", name)));
      tensors_.push_back(tensor);
    }
    if (options_.in_place) {
      for (const talweg_tensor tensor : tensors_) {
        std::memcpy(talweg_contribution(client_, tensor), contribution_.data(),
                    contribution_.size());
      }
    }
    TALWEG_RETURN_IF_ERROR(Rounds(options_.in_flight));
    TALWEG_RETURN_IF_ERROR(CheckResult());
    int64_t begin_ns = NowNs();
    TALWEG_RETURN_IF_ERROR(Rounds(kWarmUpRounds));
    TALWEG_ASSIGN_OR_RETURN(const uint64_t rounds, AgreeOnRounds(NowNs() - begin_ns));

    BenchMeasurement measurement;
    measurement.tensor_bytes = contribution_.size();
    const bool is_first = talweg_rank(client_) == 0;
    uint64_t wire_bytes = 0;
    uint64_t daemon_cpu_ns = 0;
    if (is_first) {
      TALWEG_ASSIGN_OR_RETURN(wire_bytes, WireBytes());
      daemon_cpu_ns = DaemonCpuNs();
    }
    TALWEG_RETURN_IF_ERROR(Check(talweg_barrier(client_, nullptr, kTimeoutNs), "barrier"));
    latencies_ns_.clear();
    const uint64_t cpu_ns = CpuNs(CLOCK_PROCESS_CPUTIME_ID);
    begin_ns = NowNs();
    TALWEG_RETURN_IF_ERROR(Rounds(rounds));
    measurement.elapsed_ns = static_cast<uint64_t>(NowNs() - begin_ns);
    measurement.rank_cpu_ns = CpuNs(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns;
    measurement.latencies_ns = latencies_ns_;
    measurement.memory_bytes = MemoryBytes("self");
    TALWEG_RETURN_IF_ERROR(Check(talweg_barrier(client_, nullptr, kTimeoutNs), "barrier"));
    if (is_first) {
      measurement.daemon_cpu_ns = DaemonCpuNs() - daemon_cpu_ns;
      TALWEG_ASSIGN_OR_RETURN(const uint64_t wire_bytes_now, WireBytes());
      measurement.wire_bytes = wire_bytes_now - wire_bytes;
      for (const std::string& pid : ListVariable("TALWEG_RUN_DAEMONS")) {
        measurement.memory_bytes += MemoryBytes(pid);
      }
    }
    // No rank begins the next size while rank 0 still reads the counters.
    TALWEG_RETURN_IF_ERROR(Check(talweg_barrier(client_, nullptr, kTimeoutNs), "barrier"));
    return measurement;
  }

 private:
  struct Open {
    size_t slot;
    talweg_round round;
    int64_t begin_ns;
  };

  // In place, a result is the next round's contribution.
  bool SumsInPlace() const {
    return options_.in_place && talweg_sums_in_place(client_, tensors_[0]) != 0;
  }

  // Does push_pulls, `in_flight` of them at a time. Sums of sums, in place, soon overflow, but take
  // the same time.
  absl::Status Rounds(uint64_t rounds) {
    const uint64_t in_flight = options_.in_flight;
    char* const out = SumsInPlace() ? nullptr : result_.data();
    std::vector<Open> open;
    size_t oldest = 0;
    for (uint64_t i = 0; i < rounds + in_flight; ++i) {
      if (i >= in_flight && i - in_flight < rounds) {
        const Open& done = open[oldest++];
        TALWEG_RETURN_IF_ERROR(
            Check(talweg_wait(client_, tensors_[done.slot], done.round, out, kTimeoutNs), "wait"));
        latencies_ns_.push_back(static_cast<uint64_t>(NowNs() - done.begin_ns));
      }
      if (i >= rounds) continue;
      Open next = {i % in_flight, 0, NowNs()};
      TALWEG_RETURN_IF_ERROR(
          Check(talweg_push_pull(client_, tensors_[next.slot],
                                 options_.in_place ? nullptr : contribution_.data(),
                                 TALWEG_DECLARED_PRIORITY, kTimeoutNs, &next.round),
                "push_pull"));
      open.push_back(next);
    }
    return absl::OkStatus();
  }

  // The first round's result.
  absl::Status CheckResult() const {
    const uint64_t ranks = talweg_size(client_);
    const std::span<const char> result =
        SumsInPlace()
            ? std::span(static_cast<const char*>(talweg_contribution(client_, tensors_[0])),
                        contribution_.size())
            : std::span<const char>(result_);
    return CheckHolds(options_.dtype, ranks * (ranks + 1) / 2, result);
  }

  std::string Name() const {
    return absl::StrCat("bench/", static_cast<int>(options_.dtype), "/", count_);
  }

  // Rank 0 estimates how many rounds take the wanted time. All ranks do so many.
  absl::StatusOr<uint64_t> AgreeOnRounds(int64_t warm_up_ns) {
    const int64_t round_ns = std::max<int64_t>(1, warm_up_ns / static_cast<int64_t>(kWarmUpRounds));
    int64_t rounds = std::clamp<int64_t>(options_.wanted_ns / round_ns, 5, kRoundsMax);
    const std::string name = absl::StrCat(Name(), "/rounds");
    TALWEG_RETURN_IF_ERROR(
        Check(talweg_broadcast(client_, name.c_str(), &rounds, 1, TALWEG_I64, 0, kTimeoutNs),
              "agree on the number of rounds"));
    return static_cast<uint64_t>(rounds);
  }

  talweg_client* const client_;
  const MeasuringOptions options_;
  const uint64_t count_;
  std::vector<char> contribution_;
  std::vector<char> result_;
  std::vector<talweg_tensor> tensors_;
  std::vector<uint64_t> latencies_ns_;
};

// Runs as a contender of ./bench, which orders the measurements.
absl::Status ServeOrders(const Arguments& arguments) {
  talweg_client* raw = nullptr;
  TALWEG_RETURN_IF_ERROR(Check(talweg_connect(nullptr, &raw), "connect to the agent"));
  const Client client(raw);
  TALWEG_RETURN_IF_ERROR(ServeBenchOrders(client.get(), arguments.Text("control", ""),
                                          arguments.Text("contender", "talweg"),
                                          arguments.Has("in-place")));
  return Check(talweg_shutdown(client.get(), kTimeoutNs), "shut down");
}

absl::Status Measure(const Arguments& arguments) {
  TALWEG_ASSIGN_OR_RETURN(
      const std::vector<uint64_t> sizes,
      ParseNumbers("--sizes", arguments.Text("sizes", ""), 1, uint64_t{1} << 40));
  MeasuringOptions options;
  TALWEG_ASSIGN_OR_RETURN(options.dtype, ParseDType(arguments.Text("dtype", "f32")));
  options.in_place = arguments.Has("in-place");
  TALWEG_ASSIGN_OR_RETURN(options.in_flight, arguments.Number("in-flight", 1, 1, 1024));
  TALWEG_ASSIGN_OR_RETURN(const uint64_t wanted_ms, arguments.Number("time-ms", 1, 1, 3'600'000));
  options.wanted_ns = static_cast<int64_t>(wanted_ms) * 1'000'000;
  talweg_client* raw = nullptr;
  TALWEG_RETURN_IF_ERROR(Check(talweg_connect(nullptr, &raw), "connect to the agent"));
  const Client client(raw);
  std::ofstream file(absl::StrCat(arguments.Text("output", ""), ".", talweg_rank(client.get())));
  for (const uint64_t tensor_bytes : sizes) {
    TALWEG_ASSIGN_OR_RETURN(const BenchMeasurement measurement,
                            Measuring(client.get(), options, tensor_bytes).Measure());
    file << MeasurementLine(measurement) << std::flush;
  }
  // An agent ends when its ranks are done; rank 0 asks all agents.
  TALWEG_RETURN_IF_ERROR(Check(talweg_barrier(client.get(), "bench/end", kTimeoutNs), "barrier"));
  if (!file) return absl::UnavailableError("cannot write the measurements");
  return Check(talweg_shutdown(client.get(), kTimeoutNs), "shut down");
}

int RunBenchRank(const Arguments& arguments) {
  const absl::Status status =
      arguments.Has("control") ? ServeOrders(arguments) : Measure(arguments);
  return status.ok() ? 0 : Fail(status);
}

}  // namespace

Command BenchRankCommand() {
  Command command;
  command.name = "bench-rank";
  command.hidden = true;
  command.summary = "A rank of talweg bench";
  command.options = {
      {"sizes", "BYTES[,BYTES...]", "Tensors' sizes."},
      {"dtype", "NAME", "Type of the elements."},
      {"in-place", "", "Gradients lie in the contribution buffers."},
      {"in-flight", "N", "Tensors at a time."},
      {"time-ms", "MS", "Time for each size."},
      {"output", "FILE", "Where to write measurements; the rank is appended to the name."},
      {"control", "SOCKET", "Instead of all that: take orders from ./bench."},
      {"contender", "NAME", "What ./bench calls this job."},
  };
  command.run = RunBenchRank;
  return command;
}

}  // namespace talweg::cli
