// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/bench_orders.h"

#include <catch2/catch.hpp>

namespace talweg::cli {
namespace {

TEST_CASE("bench orders: a line says what to measure", "[cli]") {
  CHECK(ParseBenchOrder("prepare f32 3 10 4096,8").value() ==
        BenchOrder{TALWEG_F32, 3, 10, {4096, 8}});
  CHECK(ParseBenchOrder("prepare bf16 0 1 6").value() == BenchOrder{TALWEG_BF16, 0, 1, {6}});
  for (const char* bad :
       {"", "go", "prepare", "prepare f32 1 1", "prepare f128 1 1 16", "prepare f32 x 1 8",
        "prepare f32 1 0 8", "prepare f32 1 1 6", "prepare bf16 1 1 3", "prepare f32 1 1 8,",
        "prepare f32 1 1 0", "prepare f32 -1 1 8", "prepare f32 1 1 8 8"}) {
    INFO(bad);
    CHECK(ParseBenchOrder(bad).status().code() == absl::StatusCode::kDataLoss);
  }
}

TEST_CASE("bench orders: a missing harness is an error", "[cli]") {
  CHECK(ServeBenchOrders(nullptr, std::string(200, 'x'), "talweg").code() ==
        absl::StatusCode::kInvalidArgument);
  CHECK_FALSE(ServeBenchOrders(nullptr, "/nowhere/control", "talweg").ok());
}

}  // namespace
}  // namespace talweg::cli
