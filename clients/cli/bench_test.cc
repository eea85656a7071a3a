// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/bench.h"

#include <catch2/catch.hpp>

namespace talweg::cli {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("bench: a measurement is read back from its line", "[cli]") {
  const BenchMeasurement measurement = {4096, 1'000, 20, 30, 40, 50, {1, 2, 3}};
  const std::string line = MeasurementLine(measurement);
  CHECK(ParseMeasurementLine(line).value() == measurement);
  CHECK(ParseMeasurementLine(MeasurementLine({})).value() == BenchMeasurement{});
  CHECK_FALSE(ParseMeasurementLine(line.substr(0, line.size() - 3)).ok());
  CHECK_FALSE(ParseMeasurementLine("").ok());
  CHECK_FALSE(ParseMeasurementLine("1 2 3 4 5 6 99999999999 1").ok());
}

TEST_CASE("bench: the measurements of all ranks are combined", "[cli]") {
  BenchMeasurement slow = {1'000'000, 2'000'000'000, 500'000'000, 0, 0, 3 << 20, {}};
  BenchMeasurement first = {1'000'000, 1'000'000'000, 500'000'000, 1'000'000'000,
                            4'000'000, 5 << 20,       {}};
  for (uint64_t i = 1; i <= 50; ++i) {
    first.latencies_ns.push_back(i * 1'000);
    slow.latencies_ns.push_back((50 + i) * 1'000);
  }
  const std::vector<BenchResult> results = Summarize({{first}, {slow}});
  REQUIRE(results.size() == 1);
  CHECK(results[0].rounds == 50);
  CHECK(results[0].rank_count == 2);
  CHECK(results[0].gigabytes_per_second == Approx(0.025));  // The slowest rank takes 2 s for 50 MB.
  CHECK(results[0].median_s == Approx(50e-6));
  CHECK(results[0].p99_s == Approx(99e-6));
  CHECK(results[0].cpu_s_per_gigabyte == Approx(20));  // 2 s for 0.1 GB.
  CHECK(results[0].wire_bytes_per_round == Approx(80'000));
  CHECK(results[0].memory_bytes == 8 << 20);
  CHECK_THAT(ResultsJson(results), Contains("\"memory_bytes\":8388608"));
  CHECK_THAT(ResultsText(results), Contains("50.0 us") || Contains("50 us"));
  CHECK_THAT(ResultsJson(results), Contains("\"p99_s\":0.000099000"));
  CHECK(Summarize({}).empty());
}

}  // namespace
}  // namespace talweg::cli
