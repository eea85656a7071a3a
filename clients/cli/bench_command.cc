// SPDX-License-Identifier: Apache-2.0
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <unistd.h>

#include <fstream>

#include "clients/cli/bench.h"
#include "clients/cli/bench_values.h"
#include "clients/cli/guard.h"
#include "clients/cli/launch.h"
#include "clients/cli/run_command.h"
#include "clients/cli/supervisor.h"
#include "libs/base/bytes.h"
#include "libs/config/config.h"
#include "libs/status/status.h"

namespace talweg::cli {
namespace {

constexpr char kDefaultSizes[] = "4KiB,64KiB,1MiB,16MiB";

absl::StatusOr<std::vector<uint64_t>> ParseSizes(const std::string& text, uint64_t element_bytes) {
  std::vector<uint64_t> sizes;
  for (const std::string& piece : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const std::optional<uint64_t> bytes = ParseBytes(piece);
    if (!bytes || *bytes == 0 || *bytes > 16 * kGiB || *bytes % element_bytes != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("option --sizes: '", piece, "' is not a size; allowed: multiples of ",
                       element_bytes, " up to 16GiB, e.g. ", kDefaultSizes));
    }
    sizes.push_back(*bytes);
  }
  return sizes;
}

absl::StatusOr<RunPlan> BenchPlanOf(const Arguments& arguments) {
  RunPlan plan;
  TALWEG_ASSIGN_OR_RETURN(const uint64_t nodes, arguments.Number("nodes", 2, 1, 64));
  TALWEG_ASSIGN_OR_RETURN(
      plan.ranks_per_node,
      ParseRanksPerNode(arguments.Text("ranks-per-node", "1"), static_cast<uint32_t>(nodes)));
  TALWEG_ASSIGN_OR_RETURN(plan.aggregator_count, arguments.Number("aggregators", 1, 1, 64));
  TALWEG_RETURN_IF_ERROR(FindLoopback(plan));
  const std::string dtype_name = arguments.Text("dtype", "f32");
  const absl::StatusOr<talweg_dtype> dtype = ParseDType(dtype_name);
  if (!dtype.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("option --dtype: ", dtype.status().message()));
  }
  TALWEG_ASSIGN_OR_RETURN(
      const std::vector<uint64_t> sizes,
      ParseSizes(arguments.Text("sizes", kDefaultSizes), talweg_dtype_bytes(*dtype)));
  TALWEG_ASSIGN_OR_RETURN(const uint64_t in_flight, arguments.Number("in-flight", 1, 1, 1024));
  TALWEG_ASSIGN_OR_RETURN(const uint64_t time_ms, arguments.Number("time-ms", 1'000, 1, 3'600'000));
  plan.job = "bench";
  plan.environment = config::ProcessEnvironment();
  ReadNetwork(arguments, plan);
  plan.program = {"/proc/self/exe",
                  "bench-rank",
                  absl::StrCat("--sizes=", absl::StrJoin(sizes, ",")),
                  absl::StrCat("--in-flight=", in_flight),
                  absl::StrCat("--time-ms=", time_ms),
                  absl::StrCat("--dtype=", dtype_name)};
  if (arguments.Has("in-place")) plan.program.push_back("--in-place");
  return plan;
}

absl::StatusOr<std::vector<std::vector<BenchMeasurement>>> ReadMeasurements(const std::string& path,
                                                                            uint32_t rank_count) {
  std::vector<std::vector<BenchMeasurement>> ranks(rank_count);
  for (uint32_t rank = 0; rank < rank_count; ++rank) {
    std::ifstream file(absl::StrCat(path, ".", rank));
    for (std::string line; std::getline(file, line);) {
      TALWEG_ASSIGN_OR_RETURN(BenchMeasurement measurement, ParseMeasurementLine(line));
      ranks[rank].push_back(std::move(measurement));
    }
  }
  return ranks;
}

int Supervise(RunPlan& plan, bool as_json) {
  const std::string path = absl::StrCat(plan.directory, "/measurements");
  plan.program.push_back(absl::StrCat("--output=", path));
  absl::StatusOr<std::unique_ptr<Supervisor>> supervisor =
      Supervisor::Make(STDOUT_FILENO, STDERR_FILENO);
  if (!supervisor.ok()) return Fail(supervisor.status());
  const LaunchResult result = Launch(plan, **supervisor).Run();
  if (!result.report.empty()) PrintError(absl::StrCat("bench: ", result.report));
  if (result.exit_status != 0) return result.exit_status;
  const auto ranks = ReadMeasurements(path, plan.world_size());
  if (!ranks.ok()) return Fail(ranks.status());
  const std::vector<BenchResult> results = Summarize(*ranks);
  return Print(as_json ? ResultsJson(results) : ResultsText(results)) ? 0 : kExitFailed;
}

int RunBench(const Arguments& arguments) {
  absl::StatusOr<RunPlan> plan = BenchPlanOf(arguments);
  if (!plan.ok()) return Fail(plan.status());
  if (const absl::Status status = FindDaemons(*plan); !status.ok()) return Fail(status);
  const bool as_json = arguments.Has("json");
  const absl::StatusOr<int> exit_status = RunGuarded([&](const std::string& directory) {
    if (const absl::Status used = UseDirectory(directory, *plan); !used.ok()) return Fail(used);
    return Supervise(*plan, as_json);
  });
  return exit_status.ok() ? *exit_status : Fail(exit_status.status());
}

}  // namespace

Command BenchCommand() {
  Command command;
  command.name = "bench";
  command.summary = "Measures push_pull between ranks on this machine";
  command.usage = "[OPTIONS]";
  command.details =
      "Starts daemons and ranks as talweg run does, and measures push_pulls (sums) of each size,\n"
      "one after the other, after a check of the sum. ./bench measures it beside its peers.\n\n"
      "  GB/s A RANK   gradient bytes of one rank a second; all ranks push at once\n"
      "  MEDIAN, P99   from push to result, over all ranks\n"
      "  CPU s A GB    of ranks and daemons together, a gigabyte of all ranks' gradients\n"
      "  WIRE A ROUND  bytes that agents sent and received (through TCP or, on one host, shared\n"
      "                memory); 0 for one node, which needs no aggregator\n"
      "  MEMORY        held by all processes, what they share counted once";
  command.options = {
      {"nodes", "N", "Number of nodes, each with an agent of its own. Default: 2."},
      {"ranks-per-node", "N[,N...]", "Ranks on each node. Default: 1."},
      {"aggregators", "N", "Number of aggregators. Default: 1."},
      {"sizes", "BYTES[,BYTES...]",
       absl::StrCat("Sizes of the tensors. Default: ", kDefaultSizes, ".")},
      {"dtype", "NAME", absl::StrCat("Type of the elements: ", DTypeNames(), ". Default: f32.")},
      {"in-flight", "N", "How many tensors are pushed before the first is waited for. Default: 1."},
      {"in-place", "",
       "Gradients lie in the contribution buffers, where a producer may write them; ranks of one "
       "node sum them there (talweg_declare_all_in_place). Otherwise they are copied. Results that "
       "come from elsewhere always are."},
      {"time-ms", "MS", "About how long each size is measured. Default: 1000."},
      {"provider", "NAME", "libfabric provider between agents and aggregators. Default: tcp."},
      {"force-distributed", "",
       "Scheduler and aggregators also for one node, and TCP ports for all, as in talweg run."},
      {"json", "", "Prints JSON."},
  };
  command.run = RunBench;
  return command;
}

}  // namespace talweg::cli
