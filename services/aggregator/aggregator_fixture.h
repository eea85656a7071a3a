// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_AGGREGATOR_FIXTURE_H_
#define TALWEG_SERVICES_AGGREGATOR_AGGREGATOR_FIXTURE_H_

#include <cstdint>

#include "libs/base/bytes.h"
#include "libs/config/config.h"

// For tests of the daemon in one process, without a scheduler. tests/integration has tests with
// one.
namespace talweg::aggregator {

inline constexpr int64_t kTimeoutNs = 60'000'000'000;

inline config::AggregatorConfig TestConfig() {
  config::AggregatorConfig config;
  config.scheduler = "127.0.0.1:1";  // Nobody listens there.
  config.name = "agg";
  config.memory_bytes_max = 8 * kMiB;
  config.drain_timeout_ms = 10;
  return config;
}

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_AGGREGATOR_FIXTURE_H_
