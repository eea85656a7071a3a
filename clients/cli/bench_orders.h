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

// An order that ./bench gives to all ranks of all contenders at the same time
// (benchmarks/peers/control.h).
struct BenchOrder {
  talweg_dtype dtype = TALWEG_F32;
  uint64_t warm_up_rounds = 1;
  uint64_t rounds = 1;
  std::vector<uint64_t> tensor_bytes;  // In the order of their pushes.

  friend bool operator==(const BenchOrder&, const BenchOrder&) = default;
};

// DATA_LOSS: the line is no order.
absl::StatusOr<BenchOrder> ParseBenchOrder(const std::string& line);

// Connects to the Unix socket `path`, says hello as a rank of `contender`, and carries out orders
// until it is told to quit. `in_place`: gradients lie in the buffers of talweg_contribution, and so
// do the results if the ranks sum in place; else in ordinary memory. Blocks.
absl::Status ServeBenchOrders(talweg_client* client, const std::string& path,
                              const std::string& contender, bool in_place = false);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_BENCH_ORDERS_H_
