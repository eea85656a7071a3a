// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/arriving_result.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/bytes.h"
#include "libs/shm/daemon/arrival_log.h"

namespace talweg::shm {
namespace {

constexpr uint64_t kSlice = 256 * kKiB;

// The memory of one tensor that agent and rank share. Each has its own mapping.
class SharedTensor {
 public:
  explicit SharedTensor(uint64_t bytes) : bytes_(bytes) {
    const int fd = ::memfd_create("test", MFD_CLOEXEC);
    if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(total())) != 0) std::abort();
    for (std::byte*& view : views_) {
      void* mapped = ::mmap(nullptr, total(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
      if (mapped == MAP_FAILED) std::abort();
      view = static_cast<std::byte*>(mapped);
    }
    ::close(fd);
    log = ArrivalLog({views_[0] + line_offset(), ArrivalsBytes(bytes_)});
    out.resize(bytes_);
  }
  SharedTensor(const SharedTensor&) = delete;
  SharedTensor& operator=(const SharedTensor&) = delete;
  ~SharedTensor() {
    for (std::byte* view : views_) ::munmap(view, total());
  }

  uint64_t bytes() const { return bytes_; }
  ArrivingResult Take(uint64_t round) {
    return {views_[1] + line_offset(), bytes_, round, views_[1], out.data(), false};
  }
  // Sets the slice's bytes to `value`, and announces them to ranks.
  uint64_t Arrive(uint64_t round, uint64_t slice, int value) {
    const uint64_t offset = slice * kSlice;
    const uint64_t length = std::min(kSlice, bytes_ - offset);
    std::memset(views_[0] + offset, value, length);
    return log.Add(Round{round}, offset, length);
  }
  bool OutIs(uint64_t from_slice, uint64_t to_slice, int value) const {
    const auto begin = out.begin() + static_cast<ptrdiff_t>(from_slice * kSlice);
    const auto end = out.begin() + static_cast<ptrdiff_t>(std::min(to_slice * kSlice, bytes_));
    return std::all_of(begin, end, [&](std::byte b) { return b == static_cast<std::byte>(value); });
  }
  ArrivalsLine& RawLine() { return *reinterpret_cast<ArrivalsLine*>(views_[0] + line_offset()); }
  Arrival& RawArrival(uint64_t index) { return reinterpret_cast<Arrival*>(&RawLine() + 1)[index]; }

  ArrivalLog log;
  std::vector<std::byte> out;

 private:
  uint64_t line_offset() const { return RoundUp(bytes_, alignof(ArrivalsLine)); }
  uint64_t total() const { return line_offset() + ArrivalsBytes(bytes_); }

  uint64_t bytes_;
  std::byte* views_[2];
};

TEST_CASE("What has arrived is copied while the rest is on its way") {
  SharedTensor tensor(4 * kMiB + 100);
  ArrivingResult taking = tensor.Take(1);
  CHECK(taking.awaited_bytes() == kMiB);
  CHECK_FALSE(taking.Ready());
  // Slices may arrive in any order.
  CHECK(tensor.Arrive(1, 5, 7) == kSlice);
  CHECK(tensor.Arrive(1, 0, 7) == 2 * kSlice);
  CHECK(tensor.Arrive(1, 1, 7) == 3 * kSlice);
  CHECK_FALSE(taking.Ready());
  CHECK(tensor.Arrive(1, 16, 7) == 3 * kSlice + 100);
  CHECK_FALSE(taking.Ready());
  tensor.Arrive(1, 2, 7);
  CHECK(taking.Ready());

  taking.CopyNew();
  CHECK(tensor.OutIs(0, 3, 7));
  CHECK(tensor.OutIs(3, 5, 0));
  CHECK(tensor.OutIs(5, 6, 7));
  CHECK(tensor.OutIs(16, 17, 7));
  CHECK(taking.awaited_bytes() == 2 * kMiB + 100);
  CHECK_FALSE(taking.Ready());

  for (const uint64_t slice : {3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
    tensor.Arrive(1, slice, 7);
  CHECK(taking.Ready());
  CHECK(taking.Finish());
  CHECK(tensor.OutIs(0, 17, 7));
}

TEST_CASE("A later wait goes on where an earlier one ended") {
  SharedTensor tensor(4 * kMiB);
  ArrivingResult taking = tensor.Take(1);
  for (uint64_t slice = 0; slice < 6; ++slice) tensor.Arrive(1, slice, 1);
  taking.CopyNew();
  std::fill(tensor.out.begin(), tensor.out.end(), std::byte{9});
  ArrivingResult next = tensor.Take(1);
  ArrivingResult::Copied copied = taking.copied();
  const int changed = GENERATE(0, 1, 2);
  if (changed == 1) ++copied.round;
  if (changed == 2) copied.out += 64;
  const bool is_this = changed == 0;
  next.GoOnBehind(copied);
  CHECK(next.awaited_bytes() == (is_this ? 2 * kMiB + kMiB / 2 : kMiB));
  for (uint64_t slice = 6; slice < 16; ++slice) tensor.Arrive(1, slice, 1);
  next.CopyNew();
  CHECK(next.Finish());
  CHECK(tensor.OutIs(0, 6, is_this ? 9 : 1));
  CHECK(tensor.OutIs(6, 16, 1));
  ArrivingResult none;
  none.GoOnBehind(copied);
  CHECK_FALSE(none.Finish());
}

TEST_CASE("Nobody is woken for the little that is left") {
  SharedTensor tensor(2 * kMiB);
  ArrivingResult taking = tensor.Take(1);
  CHECK(taking.awaited_bytes() == kMiB);
  for (uint64_t slice = 0; slice < 4; ++slice) tensor.Arrive(1, slice, 1);
  taking.CopyNew();
  CHECK(taking.awaited_bytes() == 0);
  tensor.Arrive(1, 4, 1);
  CHECK_FALSE(taking.Ready());
  // A large tensor wakes a waiter for each sixteenth.
  SharedTensor large(64 * kMiB);
  CHECK(large.Take(1).awaited_bytes() == 4 * kMiB);
}

TEST_CASE("Only arrivals of the awaited round count") {
  SharedTensor tensor(kMiB * 2);
  for (uint64_t slice = 0; slice < 8; ++slice) tensor.Arrive(1, slice, 1);
  ArrivingResult taking = tensor.Take(2);
  CHECK_FALSE(taking.Ready());
  taking.CopyNew();
  CHECK(tensor.OutIs(0, 8, 0));
  for (uint64_t slice = 0; slice < 8; ++slice) tensor.Arrive(2, slice, 2);
  taking.CopyNew();
  CHECK(taking.Finish());
  CHECK(tensor.OutIs(0, 8, 2));
}

TEST_CASE("A slice that arrives twice is copied again") {
  SharedTensor tensor(2 * kMiB);
  ArrivingResult taking = tensor.Take(1);
  for (uint64_t slice = 0; slice < 5; ++slice) tensor.Arrive(1, slice, 1);
  taking.CopyNew();
  SECTION("All slices arrive again") {
    for (uint64_t slice = 0; slice < 8; ++slice) tensor.Arrive(1, slice, 2);
    CHECK_FALSE(taking.Finish());
  }
  SECTION("One slice arrives again") {
    for (const uint64_t slice : {5, 6, 7, 0}) tensor.Arrive(1, slice, 2);
    CHECK_FALSE(taking.Finish());
  }
  SECTION("Slices arrive again before all have come, and nobody is woken for ever") {
    for (uint64_t slice = 0; slice < 7; ++slice) {
      tensor.Arrive(1, slice, 2);
      taking.CopyNew();
      CHECK_FALSE(taking.Ready());
    }
    CHECK(taking.awaited_bytes() == 0);
    CHECK_FALSE(taking.Finish());
  }
  // The next round is not affected.
  ArrivingResult next = tensor.Take(2);
  for (uint64_t slice = 0; slice < 8; ++slice) tensor.Arrive(2, slice, 3);
  next.CopyNew();
  CHECK(next.Finish());
  CHECK(tensor.OutIs(0, 8, 3));
}

TEST_CASE("A look copies a bounded part of what has arrived") {
  SharedTensor tensor(16 * kMiB);
  ArrivingResult taking = tensor.Take(1);
  for (uint64_t slice = 0; slice < 60; ++slice) tensor.Arrive(1, slice, 1);
  for (uint64_t copied = 16; copied <= 48; copied += 16) {
    CHECK(taking.Ready());
    taking.CopyNew();
    CHECK(taking.bytes_copied() == copied * kSlice);
    CHECK(tensor.OutIs(0, copied, 1));
    CHECK(tensor.OutIs(copied, 64, 0));
  }
  for (uint64_t slice = 60; slice < 64; ++slice) tensor.Arrive(1, slice, 1);
  CHECK(taking.Finish());
  CHECK(tensor.OutIs(0, 64, 1));
}

TEST_CASE("The copy catches up with what has arrived, however large the steps are") {
  SharedTensor tensor(128 * kMiB);
  ArrivingResult taking = tensor.Take(1);
  CHECK(taking.awaited_bytes() == 8 * kMiB);
  for (uint64_t slice = 0; slice < 32; ++slice) tensor.Arrive(1, slice, 1);
  CHECK(taking.Ready());
  taking.CopyNew();
  CHECK(taking.bytes_copied() == 4 * kMiB);
  CHECK(taking.Ready());
  taking.CopyNew();
  CHECK(taking.bytes_copied() == 8 * kMiB);
  CHECK_FALSE(taking.Ready());
  CHECK(taking.awaited_bytes() == 16 * kMiB);
}

TEST_CASE("A slice that arrived twice is copied again only when the whole result is") {
  SharedTensor tensor(4 * kMiB);
  ArrivingResult taking = tensor.Take(1);
  for (uint64_t slice = 0; slice < 8; ++slice) tensor.Arrive(1, slice, 1);
  taking.CopyNew();
  for (uint64_t slice = 0; slice < 16; ++slice) tensor.Arrive(1, slice, 2);
  CHECK_FALSE(taking.Finish());
  CHECK(taking.bytes_copied() == 8 * kSlice);
  CHECK(tensor.OutIs(0, 8, 1));
}

TEST_CASE("Bytes that no arrival names are not looked for again and again") {
  SharedTensor tensor(4 * kMiB);
  ArrivingResult taking = tensor.Take(1);
  tensor.RawLine().round.store(1);
  tensor.RawLine().bytes.store(2 * kMiB);
  CHECK(taking.Ready());
  taking.CopyNew();
  CHECK(taking.awaited_bytes() == 0);
  CHECK_FALSE(taking.Ready());
  CHECK_FALSE(taking.Finish());
}

TEST_CASE("An arrival of the next round does not count for this one") {
  SharedTensor tensor(4 * kMiB);
  ArrivingResult taking = tensor.Take(1);
  for (uint64_t slice = 0; slice < 8; ++slice) tensor.Arrive(1, slice, 1);
  taking.CopyNew();
  for (uint64_t slice = 0; slice < 16; ++slice) tensor.Arrive(2, slice, 2);
  CHECK_FALSE(taking.Ready());
  taking.CopyNew();
  CHECK(tensor.OutIs(0, 8, 1));
  CHECK(tensor.OutIs(8, 16, 0));
  CHECK_FALSE(taking.Finish());
}

TEST_CASE("A wait that has copied nothing leaves everything to the end") {
  SharedTensor tensor(2 * kMiB);
  ArrivingResult taking = tensor.Take(1);
  for (uint64_t slice = 0; slice < 8; ++slice) tensor.Arrive(1, slice, 1);
  CHECK_FALSE(taking.Finish());
  ArrivingResult none;
  CHECK(none.awaited_bytes() == 0);
  CHECK_FALSE(none.Ready());
  CHECK_FALSE(none.Finish());
}

TEST_CASE("A full log announces no more, and does not vouch for the whole") {
  SharedTensor tensor(kMiB);
  const uint64_t last = ArrivalsCapacity(kMiB) - 1;
  for (uint64_t i = 0; i < last; ++i) CHECK(tensor.log.Add(Round{1}, i, 1) == i + 1);
  CHECK(tensor.log.Add(Round{1}, last, kMiB - last) == kMiB);
  // Bytes that the full log cannot name may have arrived twice.
  CHECK(tensor.log.Add(Round{1}, 0, kSlice) == kMiB);
  ArrivingResult taking = tensor.Take(1);
  taking.CopyNew();
  CHECK_FALSE(taking.Ready());
  CHECK_FALSE(taking.Finish());
  // The next round works again.
  ArrivingResult next = tensor.Take(2);
  for (uint64_t slice = 0; slice < 4; ++slice) tensor.Arrive(2, slice, 5);
  next.CopyNew();
  CHECK(next.Finish());
}

TEST_CASE("An arrival with impossible bounds is not copied") {
  SharedTensor tensor(2 * kMiB);
  ArrivingResult taking = tensor.Take(1);
  for (uint64_t slice = 0; slice < 8; ++slice) tensor.Arrive(1, slice, 1);
  const uint64_t bad = GENERATE(2 * kMiB, ~uint64_t{0}, ~uint64_t{0} - kSlice + 1);
  tensor.RawArrival(3).offset_bytes.store(bad);
  taking.CopyNew();
  CHECK(tensor.OutIs(0, 3, 1));
  CHECK(tensor.OutIs(3, 8, 0));
  CHECK_FALSE(taking.Ready());
  CHECK_FALSE(taking.Finish());
}

TEST_CASE("A small tensor has no log") {
  CHECK(ArrivalsBytes(kMiB - 1) == 0);
  ArrivalLog none{std::span<std::byte>{}};
  CHECK_FALSE(none.valid());
  CHECK(none.Add(Round{1}, 0, 64) == 0);
}

TEST_CASE("A copy counts as whole only if it is the result") {
  SharedTensor tensor(2 * kMiB);
  std::mt19937 random(Catch::rngSeed());
  uint64_t early = 0;
  for (uint64_t round = 1; round <= 200; ++round) {
    std::atomic<bool> complete{false};
    std::atomic<bool> begun{false};
    const bool gives_up = random() % 2 == 0;
    const uint64_t kept = random() % 9;
    std::thread agent([&] {
      while (!begun.load()) std::this_thread::yield();
      if (gives_up) {
        for (uint64_t slice = 0; slice < kept; ++slice) tensor.Arrive(round, slice, 99);
      }
      for (uint64_t slice = 0; slice < 8; ++slice) {
        tensor.Arrive(round, slice, static_cast<int>(round));
      }
      complete.store(true);
    });
    ArrivingResult taking = tensor.Take(round);
    begun.store(true);
    while (!complete.load()) taking.CopyNew();
    if (taking.Finish()) {
      ++early;
      CHECK(tensor.OutIs(0, 8, static_cast<int>(round)));
    }
    agent.join();
  }
  CHECK(early > 0);
}

}  // namespace
}  // namespace talweg::shm
