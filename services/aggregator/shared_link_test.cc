// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/shared_link.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/bytes.h"

// Whole lives of jobs at several lanes are in tests/sim/link_test.
namespace talweg::aggregator {
namespace {

using Phase = aggregation::LinkShare::Phase;
using Turn = SharedLink::Turn;

constexpr JobId kA{1}, kB{2};
constexpr int64_t kMs = 1'000'000;
constexpr uint64_t kSlice = 64 * kKiB;

// One life of a job at one lane.
struct At {
  At(SharedLink::Lane* lane, JobId job) : link(&lane->link()) {
    turn.use = link->Begin(lane, job);
    turn.wants = true;
  }
  ~At() { link->End(turn.use); }
  // Reports that so many bytes have come and wait to be given back. Returns how many were given
  // back.
  uint64_t Ask(uint64_t bytes, int64_t now_ns) {
    turn.received_bytes += bytes;
    turn.held_bytes += bytes;
    Turn* const mine = &turn;
    link->Settle({&mine, 1}, now_ns);
    return turn.given_bytes;
  }

  SharedLink* const link;
  Turn turn;
};

// Job A is at both lanes, and job B only at the second one. They share the link by now.
struct TwoLanes {
  explicit TwoLanes(uint32_t weight_of_b = 1) {
    link.SetQuota(kA, {});
    link.SetQuota(kB, {.weight = weight_of_b, .tenant_weight = weight_of_b});
    while (link.phase() != Phase::kSharing) {
      now_ns += kMs;
      for (At* const each : {&a0, &a1, &b1}) each->Ask(2 * kSlice, now_ns);
      REQUIRE(now_ns < 5000 * kMs);
    }
    wakes = {0, 0};
    lane0.TakeWoken();
    lane1.TakeWoken();
  }
  // A slice comes every 100 us. Those that have credit take turns, and always have more to send.
  // Returns what each got back.
  std::array<uint64_t, 3> Run(int rounds) {
    std::array<uint64_t, 3> got = {};
    const std::array<At*, 3> all = {&a0, &a1, &b1};
    size_t next = 0;
    for (int i = 0; i < rounds; ++i) {
      now_ns += kMs / 10;
      for (size_t j = 0; j < all.size(); ++j) {
        if (all[j]->turn.held_bytes > 0) got[j] += all[j]->Ask(0, now_ns);
      }
      for (size_t tried = 0; tried < all.size(); ++tried) {
        const size_t j = next++ % all.size();
        if (all[j]->turn.held_bytes > 0) continue;
        got[j] += all[j]->Ask(kSlice, now_ns);
        break;
      }
    }
    return got;
  }

  SharedLink link;
  std::array<int, 2> wakes = {0, 0};
  SharedLink::Lane lane0{&link, [this] { ++wakes[0]; }};
  SharedLink::Lane lane1{&link, [this] { ++wakes[1]; }};
  At a0{&lane0, kA};
  At a1{&lane1, kA};
  At b1{&lane1, kB};
  int64_t now_ns = 0;
};

double Ratio(uint64_t a, uint64_t b) { return static_cast<double>(a) / static_cast<double>(b); }

TEST_CASE("SharedLink: a job at one lane has its part beside a job at all lanes", "[aggregator]") {
  TwoLanes world;
  const auto equal = world.Run(60'000);
  CHECK(Ratio(equal[2], equal[0] + equal[1]) == Approx(1).epsilon(0.05));
  CHECK(Ratio(equal[0], equal[1]) == Approx(1).epsilon(0.05));
}

TEST_CASE("SharedLink: weights hold over all lanes", "[aggregator]") {
  TwoLanes world(4);
  const auto got = world.Run(60'000);
  CHECK(Ratio(got[2], got[0] + got[1]) == Approx(4).epsilon(0.1));
}

TEST_CASE("SharedLink: jobs that are at different lanes share the link", "[aggregator]") {
  SharedLink link;
  SharedLink::Lane lane0(&link, [] {});
  SharedLink::Lane lane1(&link, [] {});
  const At a(&lane0, kA);
  CHECK_FALSE(link.is_shared());
  {
    const At b(&lane1, kB);
    CHECK(link.is_shared());
    const At also(&lane0, kB);
    CHECK(link.is_shared());
  }
  CHECK_FALSE(link.is_shared());
}

TEST_CASE("SharedLink: a job wants the link while it wants it at one of its lanes",
          "[aggregator]") {
  TwoLanes world;
  world.a0.turn.wants = false;
  world.a0.Ask(0, world.now_ns);
  CHECK(world.link.PartOf(kA) > 0);
  world.a1.turn.wants = false;
  world.a1.Ask(0, world.now_ns);
  CHECK(world.link.PartOf(kA) == 0);
}

TEST_CASE("SharedLink: a lane whose job's credit waits is woken once when there is room",
          "[aggregator]") {
  TwoLanes world;
  world.a0.Ask(1000 * kMiB, world.now_ns);
  while (world.a0.Ask(0, world.now_ns) > 0) {
  }
  world.wakes = {0, 0};
  world.lane0.TakeWoken();
  REQUIRE(world.a0.turn.held_bytes > 0);
  SECTION("Another job has been given its part") {
    world.b1.Ask(world.link.SlackBytes() / 4, world.now_ns);
  }
  SECTION("Another job no longer wants the link") {
    world.b1.turn.wants = false;
    world.b1.Ask(0, world.now_ns);
  }
  SECTION("Nothing of another job has moved for long") {
    world.a1.Ask(kSlice, world.now_ns + 2 * aggregation::LinkShare::kSilenceNs);
  }
  CHECK(world.wakes == std::array{1, 0});
  world.b1.Ask(kSlice, world.now_ns);
  CHECK(world.wakes == std::array{1, 0});
  CHECK(world.lane0.TakeWoken());
  CHECK_FALSE(world.lane0.TakeWoken());
  CHECK(world.a0.Ask(0, world.now_ns) > 0);
}

TEST_CASE("SharedLink: a lane is woken when the other job is gone", "[aggregator]") {
  SharedLink link;
  int wakes = 0;
  SharedLink::Lane lane0(&link, [&wakes] { ++wakes; });
  SharedLink::Lane lane1(&link, [] {});
  At a(&lane0, kA);
  auto b = std::make_unique<At>(&lane1, kB);
  int64_t now_ns = 0;
  while (link.phase() != Phase::kSharing) {
    now_ns += kMs;
    a.Ask(2 * kSlice, now_ns);
    b->Ask(2 * kSlice, now_ns);
    REQUIRE(now_ns < 5000 * kMs);
  }
  a.Ask(1000 * kMiB, now_ns);
  REQUIRE(a.turn.held_bytes > 0);
  wakes = 0;
  b.reset();
  CHECK(wakes == 1);
  a.Ask(0, now_ns);
  CHECK(a.turn.held_bytes == 0);
}

TEST_CASE("SharedLink: lanes take turns with the bytes that their job gets", "[aggregator]") {
  TwoLanes world;
  // Lane 0 asks a hundred times as often.
  for (At* const each : {&world.a0, &world.a1}) each->Ask(10'000 * kMiB, world.now_ns);
  std::array<uint64_t, 2> got = {};
  for (int i = 0; i < 20'000; ++i) {
    world.now_ns += kMs / 10;
    world.b1.Ask(kSlice, world.now_ns);
    got[0] += world.a0.Ask(0, world.now_ns);
    if (i % 100 == 0) got[1] += world.a1.Ask(0, world.now_ns);
  }
  CHECK(Ratio(got[0], got[1]) == Approx(1).epsilon(0.05));
}

TEST_CASE("SharedLink: nobody waits for a lane that was woken and does not come", "[aggregator]") {
  TwoLanes world;
  for (At* const each : {&world.a0, &world.a1}) each->Ask(10'000 * kMiB, world.now_ns);
  uint64_t got = 0;
  for (int i = 0; i < 20'000; ++i) {
    world.now_ns += kMs / 10;
    world.b1.Ask(kSlice, world.now_ns);
    got += world.a0.Ask(0, world.now_ns);
  }
  CHECK(got >= 19'000 * kSlice);
}

TEST_CASE("SharedLink: lanes settle on threads of their own", "[aggregator]") {
  SharedLink link;
  std::atomic<uint64_t> wakes = 0;
  constexpr int kLanes = 3;
  std::atomic<uint64_t> given = 0;
  constexpr int kRounds = 3000;
  std::vector<std::thread> threads;
  for (int lane = 0; lane < kLanes; ++lane) {
    threads.emplace_back([&, lane] {
      SharedLink::Lane mine(&link, [&wakes] { ++wakes; });
      for (int life = 0; life < 3; ++life) {
        At a(&mine, kA);
        At b(&mine, JobId{static_cast<uint64_t>(10 + lane)});
        std::array<Turn*, 2> turns = {&a.turn, &b.turn};
        // All bytes come back in the end.
        uint64_t left = kRounds * kSlice;
        for (int64_t now_ns = 0; left > 0 || a.turn.held_bytes + b.turn.held_bytes > 0;
             now_ns += kMs) {
          for (Turn* const turn : turns) {
            const uint64_t bytes = std::min(left, kSlice);
            left -= bytes;
            turn->received_bytes += bytes;
            turn->held_bytes += bytes;
            turn->wants = left > 0;
          }
          link.Settle(turns, now_ns);
          given += a.turn.given_bytes + b.turn.given_bytes;
          mine.TakeWoken();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(given == 3 * kLanes * kRounds * kSlice);
  CHECK_FALSE(link.is_shared());
}

}  // namespace
}  // namespace talweg::aggregator
