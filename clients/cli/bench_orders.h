// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_BENCH_ORDERS_H_
#define TALWEG_CLIENTS_CLI_BENCH_ORDERS_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "clients/c/talweg.h"

namespace talweg::cli {

// What ./bench wants of all ranks of all contenders at one moment (benchmarks/peers/control.h).
struct BenchOrder {
  talweg_dtype dtype = TALWEG_F32;
  uint64_t warm_up_rounds = 1;
  uint64_t rounds = 1;
  std::vector<uint64_t> tensor_bytes;  // In the order of their pushes.

  friend bool operator==(const BenchOrder&, const BenchOrder&) = default;
};

// DATA_LOSS for a line that is no order.
absl::StatusOr<BenchOrder> ParseBenchOrder(const std::string& line);

// Connects to the Unix socket `path`, says hello as a rank of `contender`, and measures what is
// ordered until told to quit. `in_place`: its gradients lie where talweg_contribution says, and
// where the ranks sum in place so do their results; else in ordinary memory. Blocks.
absl::Status ServeBenchOrders(talweg_client* client, const std::string& path,
                              const std::string& contender, bool in_place = false);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_BENCH_ORDERS_H_
