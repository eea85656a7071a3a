// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/result_queue.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/random.h"

namespace talweg::aggregation {
namespace {

SendResult Result(uint64_t write, int32_t priority, uint32_t bytes = 100) {
  SendResult result;
  result.write = WriteId{write};
  result.priority = priority;
  result.travel_bytes = bytes;
  return result;
}

// Returns the numbers of all results that leave, if no others come and each is written before the
// next.
std::vector<uint64_t> Rest(ResultQueue& queue) {
  std::vector<uint64_t> order;
  queue.OnWritten(queue.under_way_bytes());
  while (const std::optional<SendResult> next = queue.Take()) {
    order.push_back(next->write.value());
    queue.OnWritten(next->travel_bytes);
  }
  return order;
}

TEST_CASE("ResultQueue: less than the window is under way before a result waits", "[aggregation]") {
  ResultQueue queue(250);
  CHECK(queue.Add(Result(1, 0)));
  CHECK(queue.Add(Result(2, 0)));
  CHECK(queue.Add(Result(3, 0)));  // 200 bytes were under way before it.
  CHECK_FALSE(queue.Add(Result(4, 9)));
  CHECK(queue.waiting_count() == 1);
  CHECK(queue.waiting_bytes() == 100);
  CHECK(queue.under_way_bytes() == 300);
  CHECK_FALSE(queue.Take());
  queue.OnWritten(100);
  REQUIRE(queue.Take()->write == WriteId{4});
  CHECK(queue.under_way_bytes() == 300);
  CHECK(queue.waiting_bytes() == 0);
  queue.OnWritten(300);
  CHECK_FALSE(queue.Take());
}

TEST_CASE("ResultQueue: the largest priority leaves first, and the oldest of several",
          "[aggregation]") {
  ResultQueue queue(1);
  REQUIRE(queue.Add(Result(0, -5)));
  const int32_t lowest = std::numeric_limits<int32_t>::min();
  uint64_t write = 1;
  for (const int32_t priority : {0, 3, -2, 3, 0, lowest, std::numeric_limits<int32_t>::max()}) {
    CHECK_FALSE(queue.Add(Result(write++, priority)));
  }
  CHECK(Rest(queue) == std::vector<uint64_t>{7, 2, 4, 1, 5, 3, 6});
}

TEST_CASE("ResultQueue: a result larger than the window leaves when nothing is under way",
          "[aggregation]") {
  ResultQueue queue(1);
  CHECK(queue.Add(Result(1, 0, 1 << 20)));
  CHECK_FALSE(queue.Add(Result(2, 0, 1 << 20)));
  queue.OnWritten(1 << 20);
  CHECK(queue.Take()->write == WriteId{2});
}

TEST_CASE("ResultQueue: without a window nothing waits", "[aggregation]") {
  ResultQueue queue;
  for (uint64_t i = 0; i < 1000; ++i) CHECK(queue.Add(Result(i, 0, ~uint32_t{0})));
  CHECK(queue.waiting_count() == 0);
}

TEST_CASE("ResultQueue: a result that waits can be taken before it may leave", "[aggregation]") {
  ResultQueue queue(1);
  REQUIRE(queue.Add(Result(1, 0)));
  CHECK_FALSE(queue.Add(Result(2, 0)));
  CHECK_FALSE(queue.Add(Result(3, 1)));
  CHECK(queue.TakeAnyway()->write == WriteId{3});
  CHECK(queue.TakeAnyway()->write == WriteId{2});
  CHECK_FALSE(queue.TakeAnyway());
  CHECK(queue.under_way_bytes() == 300);
}

TEST_CASE("ResultQueue: every result leaves once, and none waits for nothing", "[aggregation]") {
  Random random(1);
  for (int life = 0; life < 200; ++life) {
    ResultQueue queue(1 + random.Below(500));
    std::vector<uint32_t> under_way;
    uint64_t added = 0;
    uint64_t left = 0;
    const auto leave = [&](uint32_t bytes) {
      under_way.push_back(bytes);
      ++left;
    };
    while (added < 100 || !under_way.empty()) {
      if (added < 100 && random.OneIn(2)) {
        const auto bytes = static_cast<uint32_t>(1 + random.Below(300));
        if (queue.Add(Result(++added, static_cast<int32_t>(random.Below(3)), bytes))) leave(bytes);
      } else if (!under_way.empty()) {
        queue.OnWritten(under_way.front());
        under_way.erase(under_way.begin());
        while (const auto next = queue.Take()) leave(next->travel_bytes);
      }
      CHECK((queue.waiting_count() == 0 || !under_way.empty()));
    }
    CHECK(left == 100);
    CHECK(queue.under_way_bytes() == 0);
  }
}

}  // namespace
}  // namespace talweg::aggregation
