// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/daemon/growing_segment.h"

#include <sys/stat.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include <catch2/catch.hpp>

#include "libs/base/bytes.h"

namespace talweg::shm {
namespace {

std::shared_ptr<GrowingSegment> MakeSegment(uint64_t bytes) {
  return std::make_shared<GrowingSegment>(SegmentUse::kResult,
                                          CreateSegment(SegmentUse::kResult, bytes).value(), "x");
}

// Returns how many bytes the kernel has given to the segment.
uint64_t Given(const GrowingSegment& place) {
  struct stat status = {};
  REQUIRE(fstat(place.segment().fd.get(), &status) == 0);
  return static_cast<uint64_t>(status.st_blocks) * 512;
}

TEST_CASE("GrowingSegment: a plan asks the kernel for nothing, and small buffers follow for free") {
  const auto place = MakeSegment(8 * kMiB);
  const UnbackedMemory first = place->Plan(0, 1000);
  CHECK_FALSE(first.empty());
  CHECK(Given(*place) == 0);
  REQUIRE(first.Back().ok());
  CHECK(Given(*place) == 256 * kKiB);
  CHECK(place->Plan(1024, 200 * kKiB).empty());
  const UnbackedMemory last = place->Plan(200 * kKiB, 300 * kKiB);
  CHECK_FALSE(last.empty());
  REQUIRE(last.Back().ok());
  CHECK(place->backed() >= 300 * kKiB);
}

TEST_CASE("GrowingSegment: buffers that are planned already get memory with the first") {
  const auto place = MakeSegment(64 * kMiB);
  const UnbackedMemory first = place->Plan(0, 2 * kMiB);
  const UnbackedMemory second = place->Plan(2 * kMiB, 4 * kMiB);
  const UnbackedMemory large = place->Plan(4 * kMiB, 40 * kMiB);
  REQUIRE(first.Back().ok());
  CHECK(place->backed() == 10 * kMiB);  // The first waits for a part of the large one alone.
  REQUIRE(second.Back().ok());
  CHECK(place->backed() == 10 * kMiB);
  REQUIRE(large.Back().ok());
  CHECK(place->backed() == 40 * kMiB);
}

TEST_CASE("GrowingSegment: memory is ready for a buffer that comes later") {
  const auto place = MakeSegment(16 * kMiB);
  const UnbackedMemory first = place->Plan(0, 3 * kMiB);
  REQUIRE(first.Back().ok());
  first.BackAhead();
  CHECK(place->backed() == 6 * kMiB);
  CHECK(place->Plan(3 * kMiB, 5 * kMiB).empty());
  first.BackAhead();
  CHECK(place->backed() == 10 * kMiB);
  CHECK(Given(*place) == 10 * kMiB);
}

TEST_CASE("GrowingSegment: a small model has no more memory ready than it uses") {
  const auto place = MakeSegment(16 * kMiB);
  const UnbackedMemory first = place->Plan(0, 100 * kKiB);
  REQUIRE(first.Back().ok());
  first.BackAhead();
  CHECK(Given(*place) == 256 * kKiB);
}

TEST_CASE("GrowingSegment: nothing is asked for after its owner has let go of it") {
  auto place = MakeSegment(16 * kMiB);
  const UnbackedMemory memory = place->Plan(0, kMiB);
  SECTION("before it was this buffer's turn") {
    place.reset();
    CHECK(memory.Back().ok());
    memory.BackAhead();
  }
  SECTION("while it is this buffer's turn") {
    // Now only this thread holds the segment, as the thread that backs does.
    CHECK(place->Back(0, kMiB).ok());
    CHECK(Given(*place) == 0);
  }
}

TEST_CASE("GrowingSegment: one thread plans and lets go while another one backs") {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<UnbackedMemory> planned;
  bool ends = false;
  bool all_ok = true;  // The thread's, until it has ended.
  std::thread backs([&] {
    std::unique_lock lock(mutex);
    while (!ends || !planned.empty()) {
      changed.wait(lock, [&] { return ends || !planned.empty(); });
      if (planned.empty()) continue;
      const UnbackedMemory next = std::move(planned.front());
      planned.pop_front();
      lock.unlock();
      all_ok = all_ok && next.Back().ok();
      next.BackAhead();
      lock.lock();
    }
  });
  for (int life = 0; life < 8; ++life) {
    auto place = MakeSegment(16 * kMiB);
    for (uint64_t at = 0; at < 16 * kMiB; at += kMiB) {
      const UnbackedMemory memory = place->Plan(at, at + kMiB);
      if (memory.empty()) place->segment().mapping.data()[at] = std::byte{1};
      const std::lock_guard lock(mutex);
      planned.push_back(memory);
      changed.notify_all();
    }
  }
  {
    const std::lock_guard lock(mutex);
    ends = true;
    changed.notify_all();
  }
  backs.join();
  CHECK(all_ok);
}

TEST_CASE("GrowingSegment: a lack of memory names the owner") {
  Segment segment = CreateSegment(SegmentUse::kResult, kMiB).value();
  segment.fd.Reset();  // The kernel refuses what it is asked for.
  const auto place = std::make_shared<GrowingSegment>(SegmentUse::kResult, std::move(segment),
                                                      "results of this node");
  const Outcome<bool> backed = place->Plan(0, kMiB).Back();
  REQUIRE_FALSE(backed.ok());
  CHECK(backed.failure().status == RankStatus::kOutOfMemory);
  CHECK(backed.failure().text.starts_with("results of this node: the kernel has no 1 MiB"));
  CHECK(place->backed() == 0);
}

}  // namespace
}  // namespace talweg::shm
