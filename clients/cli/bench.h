// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_BENCH_H_
#define TALWEG_CLIENTS_CLI_BENCH_H_

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "clients/cli/command.h"

namespace talweg::cli {

Command BenchCommand();
// The command that the ranks of `talweg bench` run.
Command BenchRankCommand();

// One rank's measurement at one size.
struct BenchMeasurement {
  uint64_t tensor_bytes = 0;
  uint64_t elapsed_ns = 0;
  uint64_t rank_cpu_ns = 0;
  // Rank 0 only: the CPU time of all daemons, and the bytes of all agents.
  uint64_t daemon_cpu_ns = 0;
  uint64_t wire_bytes = 0;
  uint64_t memory_bytes = 0;           // This rank's; rank 0 adds all daemons'.
  std::vector<uint64_t> latencies_ns;  // One for each push_pull.

  friend bool operator==(const BenchMeasurement&, const BenchMeasurement&) = default;
};

// Format and parse a measurement as one line. DATA_LOSS: the line is no measurement.
std::string MeasurementLine(const BenchMeasurement& measurement);
absl::StatusOr<BenchMeasurement> ParseMeasurementLine(const std::string& line);

// The measurements of all ranks at one size.
struct BenchResult {
  uint64_t tensor_bytes = 0;
  uint64_t rounds = 0;
  uint64_t rank_count = 0;
  double gigabytes_per_second = 0;  // Each rank's gradient.
  double median_s = 0;
  double p99_s = 0;
  double cpu_s_per_gigabyte = 0;    // CPU of all processes for a gigabyte of gradient of all ranks.
  double wire_bytes_per_round = 0;  // Sent and received by all agents.
  uint64_t memory_bytes = 0;        // Held by all processes, shared memory counted once.
};

// All `ranks` must have measured the same sizes, in the same order.
std::vector<BenchResult> Summarize(const std::vector<std::vector<BenchMeasurement>>& ranks);
std::string ResultsText(const std::vector<BenchResult>& results);
std::string ResultsJson(const std::vector<BenchResult>& results);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_BENCH_H_
