// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/credit_meter.h"

#include <cstdint>

#include <catch2/catch.hpp>

#include "libs/base/bytes.h"
#include "libs/wire/frames.h"

namespace talweg::aggregator {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr uint64_t kCredit = 8 * kMiB;

TEST_CASE("CreditMeter: over a slow link only a little credit waits", "[aggregator]") {
  CreditMeter meter;
  CHECK(meter.KeptBytes(kCredit) == wire::kKeptCreditBytes);
  for (int64_t ms = 1; ms < 100; ++ms) {
    meter.OnReceived(64 * kKiB, ms * kMs);
    CHECK(meter.KeptBytes(kCredit) == wire::kKeptCreditBytes);
  }
}

TEST_CASE("CreditMeter: over a fast link, as much waits as comes in a millisecond, within bounds",
          "[aggregator]") {
  CreditMeter meter;
  const auto receive = [&meter](uint64_t bytes_per_ms, int64_t from_ms) {
    for (int64_t quarter = 0; quarter <= 16; ++quarter) {
      meter.OnReceived(bytes_per_ms / 4, from_ms * kMs + quarter * kMs / 4);
    }
  };
  receive(512 * kKiB, 1000);
  CHECK(meter.KeptBytes(kCredit) == 512 * kKiB);
  receive(4 * kMiB, 2000);
  CHECK(meter.KeptBytes(kCredit) == kCredit / CreditMeter::kPartMax);
  CHECK(meter.KeptBytes(2 * kMiB) == 2 * kMiB / CreditMeter::kPartMax);
  // A little credit is never kept, however fast it comes.
  CHECK(meter.KeptBytes(wire::kSmallCreditBytes) == 0);
  // A pause counts: the link is no longer known to be fast.
  meter.OnReceived(64 * kKiB, 5000 * kMs);
  CHECK(meter.KeptBytes(kCredit) == wire::kKeptCreditBytes);
}

}  // namespace
}  // namespace talweg::aggregator
