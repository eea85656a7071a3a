// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/link_share.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/aggregation/quota_testing.h"
#include "libs/base/bytes.h"

// Whole lives of jobs on one link are in tests/sim/link_test.
namespace talweg::aggregation {
namespace {

using Phase = LinkShare::Phase;

constexpr JobId kA{1}, kB{2}, kC{3};
constexpr int64_t kMs = 1'000'000;
constexpr uint64_t kSlice = 64 * kKiB;

// Jobs whose slices arrive over a link as fast as they may. Slices become results at once.
struct World {
  explicit World(const std::map<JobId, view::JobQuota>& quotas) {
    for (const auto& [job, quota] : quotas) {
      share.Set(job, quota);
      share.SetWants(job, true, now_ns);
    }
  }
  // A slice of the job arrives if the job has credit for one.
  bool Come(JobId job) {
    uint64_t& lacking = lacking_bytes.try_emplace(job, kSlice).first->second;
    const uint64_t bytes = std::min(lacking, share.RoomBytes(job, now_ns));
    share.OnGiven(job, bytes);
    lacking -= bytes;
    if (lacking > 0) return false;
    lacking = kSlice;
    share.OnReceived(job, kSlice, now_ns);
    share.OnSent(job, kSlice, now_ns);
    ++came[job];
    return true;
  }
  // A slice arrives every 250 us. `jobs` take turns, except for those without room. If no job has
  // room, the link is idle.
  void Run(int64_t ms, const std::vector<JobId>& jobs) {
    came.clear();
    size_t turn = 0;
    for (int64_t i = 0; i < 4 * ms; ++i) {
      now_ns += kMs / 4;
      for (size_t tried = 0; tried < jobs.size(); ++tried) {
        if (Come(jobs[turn++ % jobs.size()])) break;
      }
    }
  }
  // Runs for the first while, in which nothing is held back.
  void Measure(const std::vector<JobId>& jobs) {
    Run(300, jobs);
    REQUIRE(share.phase() == Phase::kSharing);
  }

  LinkShare share;
  int64_t now_ns = 0;
  std::map<JobId, int> came;
  std::map<JobId, uint64_t> lacking_bytes;  // How much credit each job lacks for its next slice.
};

TEST_CASE("LinkShare: a job that is alone has all the room", "[aggregation]") {
  World world({{kA, Quota(1)}, {kB, Quota(4)}});
  world.share.SetWants(kB, false, world.now_ns);
  world.Run(1000, {kA});
  CHECK(world.came[kA] == 4000);
  CHECK(world.share.phase() == Phase::kAlone);
  CHECK(world.share.RoomBytes(kA, world.now_ns) == LinkShare::kNoBound);
  CHECK(world.share.BytesPerMs() == 0);
}

TEST_CASE("LinkShare: jobs that want the link share it by weight", "[aggregation]") {
  World world({{kA, Quota(1)}, {kB, Quota(4)}});
  CHECK(world.share.phase() == Phase::kMeasuring);
  world.Run(150, {kA, kB});
  CHECK(world.came[kA] == world.came[kB]);
  world.Measure({kA, kB});
  // Half a MiB each millisecond: a slice and its result.
  CHECK(static_cast<double>(world.share.BytesPerMs()) == Approx(8.0 * kSlice).epsilon(0.01));
  world.Run(1000, {kA, kB});
  CHECK(world.came[kA] + world.came[kB] == 4000);
  CHECK(world.came[kA] >= 780);
  CHECK(world.came[kA] <= 820);
}

TEST_CASE("LinkShare: measurements take a fiftieth of the time, on a slow link too",
          "[aggregation]") {
  World world({{kA, Quota(1)}, {kB, Quota(1, "", 1, view::Priority::kHigh)}});
  const int64_t ms_between_slices = GENERATE(1, 16);
  for (int64_t i = 0; i < 120'000 / ms_between_slices; ++i) {
    world.now_ns += ms_between_slices * kMs;
    if (!world.Come(i % 2 == 0 ? kA : kB)) world.Come(i % 2 == 0 ? kB : kA);
  }
  const double ratio = static_cast<double>(world.came[kB]) / world.came[kA];
  // 16 to 1 while the link is shared, 1 to 1 while it is measured.
  CHECK(ratio > 12);
  CHECK(ratio <= 16);
}

TEST_CASE("LinkShare: the bytes that a job receives count as those that it sends do",
          "[aggregation]") {
  World world({{kA, Quota(1)}, {kB, Quota(1)}});
  world.Measure({kA, kB});
  // Each slice of job B goes to ten members.
  int a = 0;
  int b = 0;
  for (int i = 0; i < 8000; ++i) {
    world.now_ns += kMs / 4;
    if (world.Come(kA)) ++a;
    if (!world.Come(kB)) continue;
    ++b;
    world.share.OnSent(kB, 9 * kSlice, world.now_ns);
  }
  // A slice of A loads the link with 2 slices, one of B with 11.
  CHECK(static_cast<double>(a) / b > 4.5);
  CHECK(static_cast<double>(a) / b < 6.5);
}

TEST_CASE("LinkShare: the link is divided among priorities, then tenants, then jobs",
          "[aggregation]") {
  LinkShare share;
  constexpr JobId kD{4};
  share.Set(kA, Quota(1, "t", 3));
  share.Set(kB, Quota(2, "t", 3));
  share.Set(kC, Quota(1));
  share.Set(kD, Quota(7, "", 1, view::Priority::kHigh));
  for (const JobId job : {kA, kB, kC}) share.SetWants(job, true, 0);
  CHECK(share.PartOf(kA) == Approx(0.25));
  CHECK(share.PartOf(kB) == Approx(0.5));
  CHECK(share.PartOf(kC) == Approx(0.25));
  CHECK(share.PartOf(kD) == 0);
  share.SetWants(kD, true, 0);
  CHECK(share.PartOf(kD) == Approx(16.0 / 17));
  CHECK(share.PartOf(kB) == Approx(0.5 / 17));
  // A job that does not want the link leaves its part to its nearest neighbours.
  share.SetWants(kA, false, 0);
  CHECK(share.PartOf(kB) == Approx(0.75 / 17));
  share.Set(kB, Quota(1, "t", 1));
  CHECK(share.PartOf(kB) == Approx(0.5 / 17));
  share.Remove(kD);
  CHECK(share.PartOf(kC) == Approx(0.5));
}

TEST_CASE("LinkShare: a job that stops leaves the link to the others at once", "[aggregation]") {
  World world({{kA, Quota(1)}, {kB, Quota(4)}});
  world.Measure({kA, kB});
  while (world.share.RoomBytes(kA, world.now_ns) >= kSlice) world.Come(kA);
  SECTION("It says that nothing waits") {
    world.share.SetWants(kB, false, world.now_ns);
    CHECK(world.share.RoomBytes(kA, world.now_ns) == LinkShare::kNoBound);
  }
  SECTION("It is gone") {
    world.share.Remove(kB);
    CHECK(world.share.RoomBytes(kA, world.now_ns) == LinkShare::kNoBound);
  }
  SECTION("It says that more waits, but nothing moves for a while") {
    world.now_ns += LinkShare::kSilenceNs / 4;
    CHECK(world.share.RoomBytes(kA, world.now_ns) < kSlice);
    world.now_ns += LinkShare::kSilenceNs;
    CHECK(world.share.RoomBytes(kA, world.now_ns) == LinkShare::kNoBound);
    CHECK(world.share.phase() == Phase::kAlone);
  }
}

TEST_CASE("LinkShare: a job that waits for others is not silent", "[aggregation]") {
  World world({{kA, Quota(1)}, {kB, Quota(2000)}});
  world.Measure({kA, kB});
  world.Run(8000, {kA, kB});
  // Job A sends a slice about every half second.
  CHECK(world.came[kA] > 10);
  CHECK(world.came[kA] < 20);
}

TEST_CASE("LinkShare: a job that has not wanted the link has no credit for that", "[aggregation]") {
  World world({{kA, Quota(1)}, {kB, Quota(1)}, {kC, Quota(1)}});
  world.Measure({kA, kB, kC});
  world.share.SetWants(kC, false, world.now_ns);
  world.Run(1000, {kA, kB});
  world.share.SetWants(kC, true, world.now_ns);
  world.Run(400, {kA, kB, kC});
  // It gets a third, give or take the slack.
  const int slack = static_cast<int>(world.share.SlackBytes() / kSlice);
  CHECK(world.came[kC] >= 533 - slack);
  CHECK(world.came[kC] <= 533 + slack);
}

TEST_CASE("LinkShare: no job waits for one that is slow for another reason", "[aggregation]") {
  World world({{kA, Quota(1)}, {kB, Quota(4)}});
  // B sends a slice every 2 ms, and A as fast as it may.
  int a = 0;
  int last_a = 0;
  int most_a = 0;
  for (int second = 0; second < 60; ++second) {
    last_a = a;
    for (int i = 0; i < 4000; ++i) {
      world.now_ns += kMs / 4;
      if (i % 8 == 0) {
        world.Come(kB);
      } else if (world.Come(kA)) {
        ++a;
      }
    }
    most_a = std::max(most_a, a - last_a);
  }
  CHECK(most_a == 3500);
  CHECK(a >= 60 * 3500 * 95 / 100);
  // When B is fast again they share. Up to 200 ms of each second may go to a measurement.
  world.Run(20'000, {kA, kB});
  world.Run(1000, {kA, kB});
  CHECK(world.came[kA] < 1100);
}

TEST_CASE("LinkShare: a link that gets slower is measured again", "[aggregation]") {
  World world({{kA, Quota(1)}, {kB, Quota(4)}});
  world.Measure({kA, kB});
  for (int i = 0; i < 8000; ++i) {
    world.now_ns += kMs;
    if (i % 2 == 0 ? !world.Come(kA) : false) world.Come(kB);
    if (i % 2 == 1) world.Come(kB);
  }
  CHECK(world.share.BytesPerMs() == 2 * kSlice);
  CHECK(world.share.phase() == Phase::kSharing);
}

TEST_CASE("LinkShare: a job without rules has all the room", "[aggregation]") {
  LinkShare share;
  share.SetWants(kA, true, 0);
  share.OnReceived(kA, 1, 0);
  share.OnSent(kA, 1, 0);
  share.OnGiven(kA, 1);
  share.Remove(kA);
  CHECK(share.RoomBytes(kA, 0) == LinkShare::kNoBound);
  CHECK(share.PartOf(kA) == 0);
}

}  // namespace
}  // namespace talweg::aggregation
