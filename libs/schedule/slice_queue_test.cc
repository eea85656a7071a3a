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

TEST_CASE("SliceQueue: priority first, then readiness, then slice", "[schedule]") {
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

TEST_CASE("SliceQueue: slices of one tensor leave to all its owners alike, each by its part",
          "[schedule]") {
  SliceQueue queue;
  queue.Open(kA, 1 << 20);
  queue.Open(kB, 1 << 20);
  // The first two thirds of the tensor are kA's.
  for (uint32_t s = 0; s < 6; ++s) {
    QueuedSlice slice = Make(s < 4 ? kA : kB, 0, 1, s);
    slice.position = s < 4 ? s * QueuedSlice::kWhole / 4 : (s - 4) * QueuedSlice::kWhole / 2;
    queue.Push(slice);
  }
  std::vector<uint32_t> left;
  while (const auto slice = queue.Take(0)) left.push_back(slice->slice.value());
  CHECK(left == std::vector<uint32_t>{0, 4, 1, 2, 5, 3});
}

TEST_CASE("SliceQueue: over a slow way less is in flight than was granted", "[schedule]") {
  SliceQueue queue;
  queue.Open(kA, 1'000'000);
  for (uint32_t s = 0; s < 1000; ++s) queue.Push(Make(kA, 0, 1, s, 10'000));
  while (queue.Take(0)) {
  }
  CHECK(queue.InFlightBytes(kA) == 1'000'000);
  // A slice a millisecond.
  for (int64_t ms = 1; ms <= 80; ++ms) queue.ReturnCredit(kA, 10'000, ms * 1'000'000);
  CHECK(queue.InFlightBytes(kA) == 200'000);
  const uint64_t window_bytes = queue.WindowBytes(kA);
  CHECK(window_bytes < 300'000);
  while (queue.Take(80'000'000)) {
  }
  CHECK(queue.InFlightBytes(kA) <= window_bytes);
  CHECK(queue.InFlightBytes(kA) + 10'000 > window_bytes);
}

TEST_CASE("SliceQueue: credit bounds what is in flight to each owner", "[schedule]") {
  SliceQueue queue;
  queue.Open(kA, 250);
  queue.Open(kB, 250);
  for (uint32_t s = 0; s < 4; ++s) {
    queue.Push(Make(kA, 5, 1, s));
    queue.Push(Make(kB, 0, 2, s));
  }
  // The urgent tensor's owner runs out of credit; the other owner's slices go on.
  CHECK(queue.Take(0)->owner == kA);
  CHECK(queue.Take(0)->owner == kA);
  CHECK(queue.Take(0)->owner == kB);
  CHECK(queue.Take(0)->owner == kB);
  CHECK(queue.Take(0) == std::nullopt);
  CHECK(queue.InFlightBytes(kA) == 200);
  queue.ReturnCredit(kA, 100, 0);
  CHECK(queue.Take(0)->slice == SliceIndex{2});
  CHECK(queue.Take(0) == std::nullopt);
  queue.ReturnCredit(kA, 1'000'000, 0);  // A peer that returns too much gets no more than all.
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

TEST_CASE("SliceQueue: an owner that is closed loses its slices, one not open yet keeps them",
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
  queue.ReturnCredit(kB, 5, 0);  // Unknown: ignored.
}

TEST_CASE("SliceQueue: what nobody wants any more is dropped without a charge", "[schedule]") {
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

TEST_CASE("SliceQueue: any order of pushes leaves in the same order", "[schedule]") {
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

}  // namespace
}  // namespace talweg::schedule
