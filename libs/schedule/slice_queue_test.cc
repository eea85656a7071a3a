// SPDX-License-Identifier: Apache-2.0
#include "libs/schedule/slice_queue.h"

#include <algorithm>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/random.h"

namespace talweg::schedule {
namespace {

constexpr AggregatorIndex kA{0};
constexpr AggregatorIndex kB{1};

QueuedSlice Make(AggregatorIndex owner, int32_t priority, uint64_t order, uint32_t slice,
                 uint32_t bytes = 100) {
  return {.owner = owner,
          .priority = priority,
          .order = order,
          .tensor = TensorKey{order},
          .slice = SliceIndex{slice},
          .cost_bytes = bytes};
}

TEST_CASE("SliceQueue: priority counts first, then readiness, then the slice's number",
          "[schedule]") {
  SliceQueue queue;
  queue.Open(kA, 1 << 20);
  const std::vector<QueuedSlice> expected = {Make(kA, 9, 7, 0), Make(kA, 5, 1, 0),
                                             Make(kA, 5, 1, 1), Make(kA, 5, 2, 0),
                                             Make(kA, -3, 0, 0)};
  for (const size_t i : {3u, 0u, 4u, 2u, 1u}) queue.Push(expected[i]);
  for (const QueuedSlice& slice : expected) CHECK(queue.Take(0) == slice);
  CHECK(queue.Take(0) == std::nullopt);
}

TEST_CASE("SliceQueue: a more urgent tensor overtakes between slices", "[schedule]") {
  SliceQueue queue;
  queue.Open(kA, 1 << 20);
  for (uint32_t s = 0; s < 3; ++s) queue.Push(Make(kA, 0, 1, s));
  CHECK(queue.Take(0)->slice == SliceIndex{0});
  queue.Push(Make(kA, 1, 2, 0));
  CHECK(queue.Take(0)->order == 2);
  CHECK(queue.Take(0)->slice == SliceIndex{1});
}

TEST_CASE("SliceQueue: slices of one tensor leave for all its owners in proportion to their parts",
          "[schedule]") {
  SliceQueue queue;
  queue.Open(kA, 1 << 20);
  queue.Open(kB, 1 << 20);
  // kA has the first two thirds of the tensor.
  for (uint32_t s = 0; s < 6; ++s) {
    QueuedSlice slice = Make(s < 4 ? kA : kB, 0, 1, s);
    slice.position = s < 4 ? s * QueuedSlice::kWhole / 4 : (s - 4) * QueuedSlice::kWhole / 2;
    queue.Push(slice);
  }
  std::vector<uint32_t> left;
  while (const auto slice = queue.Take(0)) left.push_back(slice->slice.value());
  CHECK(left == std::vector<uint32_t>{0, 4, 1, 2, 5, 3});
}

TEST_CASE("SliceQueue: over a slow link, less is in flight to all owners together than was granted",
          "[schedule]") {
  SliceQueue queue;
  constexpr uint64_t kGranted = 8'000'000;
  queue.Open(kA, kGranted);
  queue.Open(kB, kGranted);
  for (uint32_t s = 0; s < 2000; ++s) queue.Push(Make(s % 2 == 0 ? kA : kB, 0, 1, s, 10'000));
  const auto take_all = [&](int64_t now_ns) {
    while (queue.Take(now_ns)) {
    }
    return queue.InFlightBytes(kA) + queue.InFlightBytes(kB);
  };
  CHECK(take_all(0) < 2'000'000);  // The speed is not known yet.
  // A slice arrives each millisecond, and the owners take turns.
  for (int64_t ms = 1; ms <= 300; ++ms) {
    queue.ReturnCredit(ms % 2 == 0 ? kA : kB, 10'000, ms * 1'000'000);
    const uint64_t in_flight = take_all(ms * 1'000'000);
    // By then, everything that left before the speed was known has arrived.
    if (ms < 200) continue;
    CHECK(in_flight <= queue.WindowBytes());
    CHECK(in_flight + 10'000 > queue.WindowBytes());
  }
  CHECK(queue.WindowBytes() < 500'000);
  // Closing an owner frees the bytes that were in flight to it.
  queue.Close(kB);
  take_all(300'000'000);
  CHECK(queue.InFlightBytes(kA) + 10'000 > queue.WindowBytes());
}

TEST_CASE("SliceQueue: an owner on this host neither fills the link nor shows its speed",
          "[schedule]") {
  SliceQueue queue;
  constexpr uint64_t kGranted = 8'000'000;
  queue.Open(kA, kGranted);
  queue.Open(kB, kGranted, Reach::kMemory);
  for (uint32_t s = 0; s < 1000; ++s) queue.Push(Make(kA, 0, 1, s, 10'000));
  for (uint32_t s = 0; s < 300; ++s) queue.Push(Make(kB, 1, 1, s, 10'000));
  const auto take_all = [&](int64_t now_ns) {
    while (queue.Take(now_ns)) {
    }
  };
  take_all(0);
  CHECK(queue.InFlightBytes(kB) == 3'000'000);
  CHECK(queue.InFlightBytes(kA) <= queue.WindowBytes());
  CHECK(queue.InFlightBytes(kA) + 10'000 > queue.WindowBytes());
  // All of that owner's slices arrive at once, while the link takes a slice each millisecond.
  for (int64_t ms = 1; ms <= 300; ++ms) {
    queue.ReturnCredit(kB, 10'000, ms * 1'000'000);
    queue.ReturnCredit(kB, 10'000, ms * 1'000'000 + 1000);
    queue.ReturnCredit(kA, 10'000, ms * 1'000'000 + 1000);
    queue.Push(Make(kB, 1, 1, 0, 10'000));
    take_all(ms * 1'000'000);
  }
  CHECK(queue.LinkBytesPerMs() >= 9'000);
  CHECK(queue.LinkBytesPerMs() <= 11'000);
}

TEST_CASE("SliceQueue: an owner on this host does not wait for the link", "[schedule]") {
  SliceQueue queue;
  constexpr uint64_t kGranted = 8'000'000;
  queue.Open(kA, kGranted);
  queue.Open(kB, kGranted, Reach::kMemory);
  // Two owners share one tensor. The window is full long before the link's part of the tensor has
  // left.
  for (uint32_t s = 0; s < 1000; ++s) {
    for (const AggregatorIndex owner : {kA, kB}) {
      QueuedSlice slice = Make(owner, 0, 1, owner == kA ? s : 1000 + s, 10'000);
      slice.position = s * (QueuedSlice::kWhole / 1000);
      queue.Push(slice);
    }
  }
  const auto take_all = [&] {
    std::vector<AggregatorIndex> owners;
    while (const auto slice = queue.Take(0)) owners.push_back(slice->owner);
    return owners;
  };
  const std::vector<AggregatorIndex> owners = take_all();
  CHECK(queue.InFlightBytes(kA) + 10'000 > queue.WindowBytes());
  CHECK(queue.InFlightBytes(kB) == kGranted);
  // The owners take turns as long as both may send.
  REQUIRE(owners.size() > 100);
  for (size_t i = 0; i < 100; ++i) CHECK(owners[i] == (i % 2 == 0 ? kA : kB));
  // Credit that returns from one owner lets that owner continue.
  queue.ReturnCredit(kB, 20'000, 1'000'000);
  CHECK(take_all() == std::vector<AggregatorIndex>{kB, kB});
}

TEST_CASE("SliceQueue: there is no bound where none is granted", "[schedule]") {
  SliceQueue queue;
  queue.Open(kA, UINT64_MAX);
  for (uint32_t s = 0; s < 100; ++s) queue.Push(Make(kA, 0, 1, s, 1'000'000'000));
  int taken = 0;
  while (queue.Take(0)) ++taken;
  CHECK(taken == 100);
  queue.ReturnCredit(kA, UINT64_MAX, 1);
  CHECK(queue.InFlightBytes(kA) == 0);
}

TEST_CASE("SliceQueue: credit bounds what is in flight to each owner", "[schedule]") {
  SliceQueue queue;
  queue.Open(kA, 250);
  queue.Open(kB, 250);
  for (uint32_t s = 0; s < 4; ++s) {
    queue.Push(Make(kA, 5, 1, s));
    queue.Push(Make(kB, 0, 2, s));
  }
  // The urgent tensor's owner runs out of credit. The other owner's slices continue.
  CHECK(queue.Take(0)->owner == kA);
  CHECK(queue.Take(0)->owner == kA);
  CHECK(queue.Take(0)->owner == kB);
  CHECK(queue.Take(0)->owner == kB);
  CHECK(queue.Take(0) == std::nullopt);
  CHECK(queue.InFlightBytes(kA) == 200);
  queue.ReturnCredit(kA, 100, 0);
  CHECK(queue.Take(0)->slice == SliceIndex{2});
  CHECK(queue.Take(0) == std::nullopt);
  queue.ReturnCredit(kA, 1'000'000,
                     0);  // A peer that returns too much gets no more than all.
  CHECK(queue.InFlightBytes(kA) == 0);
}

TEST_CASE("SliceQueue: a slice larger than the credit leaves alone", "[schedule]") {
  SliceQueue queue;
  queue.Open(kA, 0);
  queue.Push(Make(kA, 0, 1, 0));
  queue.Push(Make(kA, 0, 1, 1));
  CHECK(queue.Take(0).has_value());
  CHECK(queue.Take(0) == std::nullopt);
  queue.ReturnCredit(kA, 100, 0);
  CHECK(queue.Take(0).has_value());
}

TEST_CASE(
    "SliceQueue: a slice larger than the credit does not wait for credit that may be kept back",
    "[schedule]") {
  SliceQueue queue;
  queue.Open(kA, 2'000'000);
  queue.Push(Make(kA, 0, 1, 0, 100'000));
  queue.Push(Make(kA, 0, 1, 1, 100'000));
  queue.Push(Make(kA, 0, 1, 2, 3'000'000));
  for (int slice = 0; slice < 2; ++slice) CHECK(queue.Take(0).has_value());
  CHECK(queue.Take(0) == std::nullopt);
  queue.ReturnCredit(kA, 100'000, 1);
  CHECK(queue.Take(2).has_value());
}

TEST_CASE("SliceQueue: a closed owner loses its slices, and one that is not open yet keeps them",
          "[schedule]") {
  SliceQueue queue;
  queue.Push(Make(kA, 0, 1, 0));
  CHECK(queue.Take(0) == std::nullopt);
  queue.Open(kA, 1000);
  CHECK(queue.Take(0).has_value());
  queue.Push(Make(kA, 0, 1, 1));
  queue.Close(kA);
  CHECK(queue.waiting_count() == 0);
  queue.Open(kA, 1000);
  CHECK(queue.InFlightBytes(kA) == 0);
  CHECK(queue.Take(0) == std::nullopt);
  queue.ReturnCredit(kB, 5, 0);  // An unknown owner is ignored.
}

TEST_CASE("SliceQueue: slices that nobody wants any more are dropped, and charge nothing",
          "[schedule]") {
  SliceQueue queue;
  queue.Open(kA, 100);
  queue.Push(Make(kA, 9, 1, 0));
  queue.Push(Make(kA, 0, 2, 0));
  const auto taken = queue.Take(0, [](const QueuedSlice& slice) { return slice.order != 1; });
  REQUIRE(taken.has_value());
  CHECK(taken->order == 2);
  CHECK(queue.InFlightBytes(kA) == 100);
  CHECK(queue.waiting_count() == 0);
}

TEST_CASE("SliceQueue: slices leave in the same order, in whatever order they were pushed",
          "[schedule]") {
  std::vector<QueuedSlice> slices;
  for (uint64_t order = 0; order < 40; ++order) {
    for (uint32_t s = 0; s < 5; ++s) {
      slices.push_back(Make(AggregatorIndex{s % 3}, static_cast<int32_t>(order % 4), order, s));
    }
  }
  std::vector<QueuedSlice> first;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    Random random(seed);
    for (size_t i = slices.size() - 1; i > 0; --i) {
      std::swap(slices[i], slices[random.Below(i + 1)]);
    }
    SliceQueue queue;
    for (uint32_t owner = 0; owner < 3; ++owner) queue.Open(AggregatorIndex{owner}, 1 << 20);
    for (const QueuedSlice& slice : slices) queue.Push(slice);
    std::vector<QueuedSlice> taken;
    while (const auto slice = queue.Take(0)) taken.push_back(*slice);
    REQUIRE(taken.size() == slices.size());
    if (seed == 0) first = taken;
    CHECK(taken == first);
  }
}

TEST_CASE("SliceQueue: a slice with a bound holds all of it until it departs with less",
          "[schedule]") {
  SliceQueue queue;
  queue.Open(kA, 1000);
  QueuedSlice slice = Make(kA, 0, 1, 0, 800);
  slice.is_bound = true;
  queue.Push(slice);
  queue.Push(Make(kA, 0, 1, 1, 700));
  CHECK(queue.Take(0) == slice);
  CHECK(queue.InFlightBytes(kA) == 800);
  CHECK(queue.Take(0) == std::nullopt);
  SECTION("It departs: what it does not need is there for others") {
    queue.Depart(kA, 800, 300, 1);
    CHECK(queue.InFlightBytes(kA) == 300);
    CHECK(queue.Take(2)->slice == SliceIndex{1});
    queue.ReturnCredit(kA, 1000, 3);
    CHECK(queue.InFlightBytes(kA) == 0);
  }
  SECTION("It does not leave: nothing is left of it") {
    queue.Depart(kA, 800, 0, 1);
    CHECK(queue.InFlightBytes(kA) == 0);
  }
  SECTION("Credit that a peer returns for it before it has left does not count") {
    queue.ReturnCredit(kA, 1 << 20, 1);
    CHECK(queue.InFlightBytes(kA) == 800);
  }
  SECTION("The owner is lost, and comes back: nothing is held") {
    queue.Close(kA);
    queue.Depart(kA, 800, 300, 1);
    queue.Open(kA, 1000);
    CHECK(queue.InFlightBytes(kA) == 0);
    queue.Push(Make(kA, 0, 1, 1, 1000));
    CHECK(queue.Take(2).has_value());
  }
}

TEST_CASE("SliceQueue: slices with a bound take room in the window before they depart",
          "[schedule]") {
  SliceQueue queue;
  queue.Open(kA, 64 << 20);
  for (uint32_t s = 0; s < 100; ++s) {
    QueuedSlice slice = Make(kA, 0, 1, s, 1 << 20);
    slice.is_bound = true;
    queue.Push(slice);
  }
  uint64_t taken = 0;
  while (queue.Take(0)) ++taken;
  CHECK(taken > 0);
  CHECK(taken < 10);
  for (uint64_t i = 0; i < taken; ++i) queue.Depart(kA, 1 << 20, 0, 1);
  CHECK(queue.Take(2).has_value());
}

}  // namespace
}  // namespace talweg::schedule
