// SPDX-License-Identifier: Apache-2.0
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <sstream>

#include "clients/cli/bench.h"
#include "clients/cli/table.h"
#include "libs/base/bytes.h"

namespace talweg::cli {
namespace {

// Returns the smallest value that `share` of the values do not exceed.
uint64_t Quantile(const std::vector<uint64_t>& sorted, double share) {
  if (sorted.empty()) return 0;
  const double position = share * static_cast<double>(sorted.size());
  const size_t index = position <= 1 ? 0 : static_cast<size_t>(position + 0.999999) - 1;
  return sorted[std::min(index, sorted.size() - 1)];
}

}  // namespace

std::string MeasurementLine(const BenchMeasurement& m) {
  return absl::StrCat(m.tensor_bytes, " ", m.elapsed_ns, " ", m.rank_cpu_ns, " ", m.daemon_cpu_ns,
                      " ", m.wire_bytes, " ", m.memory_bytes, " ", m.latencies_ns.size(), " ",
                      absl::StrJoin(m.latencies_ns, " "), "\n");
}

absl::StatusOr<BenchMeasurement> ParseMeasurementLine(const std::string& line) {
  std::istringstream in(line);
  BenchMeasurement m;
  size_t count = 0;
  in >> m.tensor_bytes >> m.elapsed_ns >> m.rank_cpu_ns >> m.daemon_cpu_ns >> m.wire_bytes >>
      m.memory_bytes >> count;
  for (uint64_t latency = 0; m.latencies_ns.size() < count && in >> latency;) {
    m.latencies_ns.push_back(latency);
  }
  if (in.fail() || m.latencies_ns.size() != count) {
    return absl::DataLossError(
        absl::StrCat("a rank's measurement cannot be read: '", line.substr(0, 100), "'"));
  }
  return m;
}

std::vector<BenchResult> Summarize(const std::vector<std::vector<BenchMeasurement>>& ranks) {
  std::vector<BenchResult> results;
  for (size_t i = 0; !ranks.empty() && i < ranks[0].size(); ++i) {
    BenchResult result;
    result.tensor_bytes = ranks[0][i].tensor_bytes;
    result.rounds = ranks[0][i].latencies_ns.size();
    result.rank_count = ranks.size();
    uint64_t elapsed_ns = 1;
    uint64_t cpu_ns = 0;
    std::vector<uint64_t> latencies;
    for (const std::vector<BenchMeasurement>& rank : ranks) {
      if (i >= rank.size()) continue;
      elapsed_ns = std::max(elapsed_ns, rank[i].elapsed_ns);
      cpu_ns += rank[i].rank_cpu_ns + rank[i].daemon_cpu_ns;
      result.memory_bytes += rank[i].memory_bytes;
      latencies.insert(latencies.end(), rank[i].latencies_ns.begin(), rank[i].latencies_ns.end());
    }
    std::sort(latencies.begin(), latencies.end());
    const double rank_bytes =
        static_cast<double>(result.tensor_bytes) * static_cast<double>(result.rounds);
    // Bytes a nanosecond are gigabytes a second; nanoseconds a byte are seconds a gigabyte.
    result.gigabytes_per_second = rank_bytes / static_cast<double>(elapsed_ns);
    result.median_s = static_cast<double>(Quantile(latencies, 0.5)) * 1e-9;
    result.p99_s = static_cast<double>(Quantile(latencies, 0.99)) * 1e-9;
    if (rank_bytes > 0) {
      result.cpu_s_per_gigabyte =
          static_cast<double>(cpu_ns) / (rank_bytes * static_cast<double>(ranks.size()));
      result.wire_bytes_per_round =
          static_cast<double>(ranks[0][i].wire_bytes) / static_cast<double>(result.rounds);
    }
    results.push_back(result);
  }
  return results;
}

std::string ResultsText(const std::vector<BenchResult>& results) {
  Table table("", {"SIZE", "ROUNDS", "GB/s A RANK", "MEDIAN", "P99", "CPU s A GB", "WIRE A ROUND",
                   "MEMORY"});
  for (const BenchResult& result : results) {
    table.Add({FormatBytes(result.tensor_bytes), absl::StrCat(result.rounds),
               absl::StrFormat("%.3f", result.gigabytes_per_second), FormatSeconds(result.median_s),
               FormatSeconds(result.p99_s), absl::StrFormat("%.2f", result.cpu_s_per_gigabyte),
               FormatBytes(static_cast<uint64_t>(result.wire_bytes_per_round)),
               FormatBytes(result.memory_bytes)});
  }
  return table.Text();
}

std::string ResultsJson(const std::vector<BenchResult>& results) {
  std::vector<std::string> items;
  for (const BenchResult& result : results) {
    items.push_back(absl::StrFormat(
        "{\"tensor_bytes\":%d,\"rounds\":%d,\"ranks\":%d,\"gigabytes_per_second\":%.6f,"
        "\"median_s\":%.9f,\"p99_s\":%.9f,\"cpu_s_per_gigabyte\":%.6f,\"wire_bytes_per_round\":%."
        "1f,\"memory_bytes\":%d}",
        result.tensor_bytes, result.rounds, result.rank_count, result.gigabytes_per_second,
        result.median_s, result.p99_s, result.cpu_s_per_gigabyte, result.wire_bytes_per_round,
        result.memory_bytes));
  }
  return absl::StrCat("{\"results\":[", absl::StrJoin(items, ","), "]}\n");
}

}  // namespace talweg::cli
