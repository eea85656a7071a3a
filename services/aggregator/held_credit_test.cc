// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/held_credit.h"

#include <array>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/bytes.h"

namespace talweg::aggregator {
namespace {

constexpr JobId kJob{1};
constexpr ConnectionId kFirst{10};
constexpr ConnectionId kSecond{11};
constexpr int64_t kMs = 1'000'000;

struct Fixture {
  void GiveBack(int64_t now_ns = 0) {
    SharedLink::Turn* const turn = credit.turn();
    link.Settle({&turn, 1}, now_ns);
    credit.GiveBack(
        [this](ConnectionId connection, uint64_t bytes) { given.emplace_back(connection, bytes); });
  }
  // Makes both jobs want the link until it is known what it carries. Afterwards they share it.
  int64_t Measure() {
    int64_t now_ns = 0;
    credit.SetWants(kFirst, true);
    other.SetWants(kSecond, true);
    while (link.phase() != aggregation::LinkShare::Phase::kSharing) {
      now_ns += kMs;
      credit.OnReceived(100 * kKiB);
      other.OnReceived(100 * kKiB);
      const std::array<SharedLink::Turn*, 2> turns = {credit.turn(), other.turn()};
      link.Settle(turns, now_ns);
      REQUIRE(now_ns < 5000 * kMs);
    }
    return now_ns;
  }

  SharedLink link;
  SharedLink::Lane lane{&link, [] {}};
  HeldCredit credit{kJob, &lane};
  HeldCredit other{JobId{2}, &lane};
  std::vector<std::pair<ConnectionId, uint64_t>> given;
};

TEST_CASE("HeldCredit: members take turns", "[aggregator]") {
  Fixture f;
  CHECK(f.credit.is_shared());
  f.credit.Hold(kFirst, 60 * kKiB);
  f.credit.Hold(kSecond, 64 * kKiB);
  f.credit.Hold(kFirst, 40 * kKiB);
  CHECK(f.credit.HasNews(false));
  f.GiveBack();
  CHECK(f.given == std::vector<std::pair<ConnectionId, uint64_t>>{
                       {kFirst, 64 * kKiB}, {kSecond, 64 * kKiB}, {kFirst, 36 * kKiB}});
  CHECK_FALSE(f.credit.is_late());
  CHECK_FALSE(f.credit.HasNews(true));
}

TEST_CASE("HeldCredit: credit that is forgotten does not come back", "[aggregator]") {
  Fixture f;
  f.credit.Hold(kFirst, 10);
  f.credit.Hold(kSecond, 20);
  f.credit.Forget(kFirst);
  f.credit.Hold(kFirst, 30);
  f.GiveBack();
  CHECK(f.given == std::vector<std::pair<ConnectionId, uint64_t>>{{kFirst, 30}, {kSecond, 20}});
  f.GiveBack();
  CHECK(f.given.size() == 2);
}

TEST_CASE("HeldCredit: without room it waits, and asks again only when there may be some",
          "[aggregator]") {
  Fixture f;
  const int64_t now_ns = f.Measure();
  const uint64_t much = 100 * f.link.SlackBytes();
  f.credit.Hold(kFirst, much);
  f.GiveBack(now_ns);
  CHECK(f.credit.is_late());
  uint64_t given_bytes = 0;
  for (const auto& [connection, bytes] : f.given) given_bytes += bytes;
  CHECK(given_bytes > 0);
  CHECK(given_bytes < much);
  CHECK_FALSE(f.credit.HasNews(false));
  CHECK(f.credit.HasNews(true));
  // The link has to hear that nothing waits any more.
  f.credit.Forget(kFirst);
  CHECK(f.credit.HasNews(false));
  f.GiveBack(now_ns);
  CHECK_FALSE(f.credit.is_late());
}

TEST_CASE("HeldCredit: a job wants the link as long as one of its members does", "[aggregator]") {
  Fixture f;
  f.credit.SetWants(kFirst, true);
  f.credit.SetWants(kSecond, true);
  f.credit.SetWants(kFirst, false);
  CHECK(f.credit.HasNews(false));
  f.GiveBack();
  CHECK(f.link.PartOf(kJob) > 0);
  CHECK_FALSE(f.credit.HasNews(false));
  f.credit.SetWants(kSecond, false);
  f.GiveBack();
  CHECK(f.link.PartOf(kJob) == 0);
}

TEST_CASE("HeldCredit: connections of a former life do not count for the job that began again",
          "[aggregator]") {
  Fixture f;
  f.credit.SetWants(kFirst, true);
  f.GiveBack();
  f.credit.Leave();
  HeldCredit again(kJob, &f.lane);
  CHECK(again.is_shared());
  CHECK_FALSE(f.credit.is_shared());  // The former job's credit goes back at once.
  CHECK(f.link.PartOf(kJob) == 0);
  f.credit.SetWants(kSecond, true);
  f.credit.OnReceived(100);
  CHECK_FALSE(f.credit.HasNews(true));
  again.SetWants(kFirst, true);
  SharedLink::Turn* const turn = again.turn();
  f.link.Settle({&turn, 1}, 0);
  CHECK(f.link.PartOf(kJob) > 0);
  f.credit.SetWants(kSecond, false);
  f.credit.Forget(kFirst);
  CHECK(f.link.PartOf(kJob) > 0);
}

}  // namespace
}  // namespace talweg::aggregator
