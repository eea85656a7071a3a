// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/leases.h"

#include <catch2/catch.hpp>

namespace talweg::membership {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST_CASE("Leases: a lease lapses at the last tick before its end", "[membership]") {
  const Config config{.lease_ns = 10 * kSecond};
  const Leases leases(config, 0);
  const int64_t end_ns = leases.EndNs(3 * kSecond);
  CHECK(end_ns == 13 * kSecond);
  CHECK_FALSE(leases.HasLapsed(end_ns, end_ns - config.TickNs() - 1));
  CHECK(leases.HasLapsed(end_ns, end_ns - config.TickNs()));
  CHECK(leases.LapseText("") == "was silent for 10 s (its lease has lapsed)");
  CHECK(leases.LapseText("it is revoked") ==
        "was silent for 10 s (its lease has lapsed), as its connection has ended: it is revoked");
}

TEST_CASE("Leases: a gap is more than half a lease without an event", "[membership]") {
  Leases leases({.lease_ns = 10 * kSecond}, kSecond);
  CHECK(leases.ObserveGap(6 * kSecond) == 0);
  CHECK(leases.ObserveGap(11 * kSecond + 1) == 5 * kSecond + 1);
  CHECK(leases.last_ns() == 11 * kSecond + 1);
  // An event of an earlier time is no gap.
  CHECK(leases.ObserveGap(2 * kSecond) == 0);
  CHECK(leases.last_ns() == 11 * kSecond + 1);
}

TEST_CASE("Leases: for one lease after a gap a broken stream is no loss", "[membership]") {
  Leases leases({.lease_ns = 10 * kSecond}, 0);
  CHECK(leases.StreamsCount(0));
  const int64_t now_ns = 100 * kSecond;
  REQUIRE(leases.ObserveGap(now_ns) == now_ns);
  CHECK_FALSE(leases.StreamsCount(now_ns + 10 * kSecond - 1));
  CHECK(leases.StreamsCount(now_ns + 10 * kSecond));
}

}  // namespace
}  // namespace talweg::membership
