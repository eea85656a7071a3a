// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/held_credit.h"

#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/bytes.h"

namespace talweg::aggregator {
namespace {

constexpr JobId kJob{1};
constexpr ConnectionId kFirst{10};
constexpr ConnectionId kSecond{11};

struct Fixture {
  Fixture() {
    link.share.Set(kJob, {});
    link.share.Set(JobId{2}, {});
  }

  SharedLink link;
  HeldCredit credit{kJob, &link};
  std::vector<std::pair<ConnectionId, uint64_t>> given;
  HeldCredit::Give give = [this](ConnectionId connection, uint64_t bytes) {
    given.emplace_back(connection, bytes);
  };
};

TEST_CASE("HeldCredit: members take turns", "[aggregator]") {
  Fixture f;
  CHECK(f.credit.is_shared());
  f.credit.Hold(kFirst, 60 * kKiB);
  f.credit.Hold(kSecond, 64 * kKiB);
  f.credit.Hold(kFirst, 40 * kKiB);
  CHECK(f.link.has_held_credit);
  CHECK_FALSE(f.credit.GiveSome(0, f.give));
  CHECK(f.given == std::vector<std::pair<ConnectionId, uint64_t>>{
                       {kFirst, 64 * kKiB}, {kSecond, 64 * kKiB}, {kFirst, 36 * kKiB}});
  CHECK_FALSE(f.credit.is_late());
}

TEST_CASE("HeldCredit: what is forgotten does not come back", "[aggregator]") {
  Fixture f;
  f.credit.Hold(kFirst, 10);
  f.credit.Hold(kSecond, 20);
  f.credit.Forget(kFirst);
  f.credit.Hold(kFirst, 30);
  f.credit.GiveSome(0, f.give);
  CHECK(f.given == std::vector<std::pair<ConnectionId, uint64_t>>{{kFirst, 30}, {kSecond, 20}});
  f.credit.GiveSome(0, f.give);
  CHECK(f.given.size() == 2);
}

TEST_CASE("HeldCredit: without room it waits", "[aggregator]") {
  Fixture f;
  constexpr int64_t kMs = 1'000'000;
  HeldCredit other(JobId{2}, &f.link);
  f.credit.SetWants(kFirst, true, 0);
  other.SetWants(kSecond, true, 0);
  // Until what the link carries has been measured nothing is held back.
  int64_t now_ns = 0;
  while (f.link.share.phase() != aggregation::LinkShare::Phase::kSharing) {
    now_ns += kMs;
    f.credit.OnReceived(100 * kKiB, now_ns);
    other.OnReceived(100 * kKiB, now_ns);
    REQUIRE(now_ns < 5000 * kMs);
  }
  const uint64_t much = 100 * f.link.share.SlackBytes();
  f.credit.Hold(kFirst, much);
  CHECK(f.credit.GiveSome(now_ns, f.give));
  CHECK(f.credit.is_late());
  uint64_t given_bytes = 0;
  for (const auto& [connection, bytes] : f.given) given_bytes += bytes;
  CHECK(given_bytes > 0);
  CHECK(given_bytes < much);
}

TEST_CASE("HeldCredit: a job wants the link as long as one of its members does", "[aggregator]") {
  Fixture f;
  f.credit.SetWants(kFirst, true, 0);
  f.credit.SetWants(kSecond, true, 0);
  f.credit.SetWants(kFirst, false, 0);
  CHECK(f.link.share.PartOf(kJob) > 0);
  f.credit.SetWants(kSecond, false, 0);
  CHECK(f.link.share.PartOf(kJob) == 0);
}

}  // namespace
}  // namespace talweg::aggregator
