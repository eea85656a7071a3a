// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/fair_share.h"

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/aggregation/quota_testing.h"
#include "libs/base/bytes.h"

namespace talweg::aggregation {
namespace {

constexpr JobId kA{1}, kB{2}, kC{3};
constexpr uint64_t kSlice = 256 * kKiB;

struct World {
  explicit World(const std::map<JobId, view::JobQuota>& quotas) {
    for (const auto& [job, quota] : quotas) {
      share.Set(job, quota);
      share.SetWaits(job, true);
    }
  }
  // Returns how many of `pieces` pieces each job gets if all jobs always have some waiting.
  std::map<JobId, int> Run(int pieces, uint64_t bytes = kSlice) {
    std::map<JobId, int> got;
    for (int i = 0; i < pieces; ++i) {
      const std::optional<JobId> next = share.Next();
      REQUIRE(next);
      ++got[*next];
      share.Serve(*next, bytes);
    }
    return got;
  }

  FairShare share;
};

TEST_CASE("FairShare: jobs that wait get pieces by weight", "[aggregation]") {
  World world({{kA, Quota(1)}, {kB, Quota(3)}});
  const auto got = world.Run(400);
  CHECK(got.at(kA) == 100);
  CHECK(got.at(kB) == 300);
}

TEST_CASE("FairShare: bytes count, not pieces", "[aggregation]") {
  World world({{kA, Quota(1)}, {kB, Quota(1)}});
  std::map<JobId, uint64_t> bytes;
  for (int i = 0; i < 1000; ++i) {
    const JobId next = *world.share.Next();
    const uint64_t piece = next == kA ? kMiB : 16 * kKiB;
    bytes[next] += piece + FairShare::kPieceBytes;
    world.share.Serve(next, piece);
  }
  const double ratio = static_cast<double>(bytes[kA]) / static_cast<double>(bytes[kB]);
  CHECK(ratio > 0.9);
  CHECK(ratio < 1.1);
}

TEST_CASE("FairShare: small pieces of one job wait for at most one piece of another",
          "[aggregation]") {
  FairShare share;
  share.Set(kA, Quota(1));
  share.Set(kB, Quota(1));
  share.SetWaits(kA, true);
  for (int i = 0; i < 1000; ++i) share.Serve(kA, kMiB);  // Job A had everything for a long time.
  share.SetWaits(kB, true);
  CHECK(share.Next() == kB);
}

TEST_CASE("FairShare: the bytes that a piece causes are charged to its job, and shares stay",
          "[aggregation]") {
  World world({{kA, Quota(1)}, {kB, Quota(4)}});
  std::map<JobId, int> got;
  for (int i = 0; i < 500; ++i) {
    const JobId next = *world.share.Next();
    ++got[next];
    world.share.Serve(next, kSlice);
    // The piece's results, and what their members then send.
    for (int j = 0; j < 3; ++j) world.share.Charge(next, kSlice);
  }
  CHECK(std::abs(got[kA] - 100) <= 2);
}

TEST_CASE("FairShare: a tenant's weight counts, however many jobs it has", "[aggregation]") {
  World world({{kA, Quota(1, "t")}, {kB, Quota(2, "t")}, {kC, Quota(1)}});
  const auto got = world.Run(600);
  CHECK(got.at(kC) == 300);
  CHECK(got.at(kA) == 100);
  CHECK(got.at(kB) == 200);
}

TEST_CASE("FairShare: a higher priority goes first, and the lower one does not starve",
          "[aggregation]") {
  World world({{kA, Quota(1, "", 1, view::Priority::kLow)},
               {kB, Quota(1)},
               {kC, Quota(1, "", 1, view::Priority::kHigh)}});
  const auto got = world.Run(273 * 4);
  CHECK(std::abs(got.at(kA) - 4) <= 1);
  CHECK(std::abs(got.at(kB) - 64) <= 2);
  CHECK(got.at(kC) >= 1020);
}

TEST_CASE("FairShare: a job without work earns no credit meanwhile", "[aggregation]") {
  World world({{kA, Quota(1)}, {kB, Quota(1)}});
  world.share.SetWaits(kB, false);
  CHECK(world.Run(1000).at(kA) == 1000);
  world.share.SetWaits(kB, true);
  const auto got = world.Run(100);
  CHECK(std::abs(got.at(kA) - got.at(kB)) <= 2);
}

TEST_CASE("FairShare: what a job got elsewhere is held against it, up to a bound",
          "[aggregation]") {
  World world({{kA, Quota(1)}, {kB, Quota(1)}});
  SECTION("A little is held against it in full") {
    world.share.Charge(kA, 10 * kSlice);
    const auto got = world.Run(30);
    CHECK(got.at(kB) - got.at(kA) >= 9);
    CHECK(got.at(kB) - got.at(kA) <= 11);
  }
  SECTION("64 MiB of a flood are held against it") {
    for (int i = 0; i < 100'000; ++i) world.share.Charge(kA, kSlice);
    std::map<JobId, int> got = world.Run(300);
    CHECK(got.at(kB) >= 250);
    got = world.Run(300);
    CHECK(std::abs(got[kA] - got[kB]) <= 2);
  }
  SECTION("A job that is alone goes on at once") {
    for (int i = 0; i < 100'000; ++i) world.share.Charge(kA, kSlice);
    world.share.SetWaits(kB, false);
    CHECK(world.Run(10).at(kA) == 10);
  }
}

TEST_CASE("FairShare: rules may change while work waits, and jobs may leave", "[aggregation]") {
  World world({{kA, Quota(1)}, {kB, Quota(1)}});
  world.Run(10);
  world.share.Set(kB, Quota(4));
  std::map<JobId, int> got = world.Run(500);
  CHECK(std::abs(got.at(kA) - 100) <= 2);
  world.share.Set(kB, Quota(1, "t", 1, view::Priority::kHigh));
  got = world.Run(170);
  CHECK(std::abs(got.at(kA) - 10) <= 2);
  CHECK(world.share.ServedBytes(kB) > world.share.ServedBytes(kA));
  world.share.Remove(kB);
  CHECK(world.Run(10).at(kA) == 10);
  world.share.Remove(kA);
  CHECK_FALSE(world.share.Next());
  world.share.Serve(kA, 1);  // Unknown jobs are ignored.
  CHECK(world.share.ServedBytes(kA) == 0);
}

}  // namespace
}  // namespace talweg::aggregation
