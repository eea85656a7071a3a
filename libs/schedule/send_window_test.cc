// SPDX-License-Identifier: Apache-2.0
#include "libs/schedule/send_window.h"

#include <algorithm>
#include <deque>

#include <catch2/catch.hpp>

#include "libs/base/bytes.h"

namespace talweg::schedule {
namespace {

constexpr uint64_t kSliceBytes = 256 * kKiB;
constexpr uint64_t kKeptBackBytes = 128 * kKiB;
constexpr int64_t kDelayNs = 500'000;
constexpr int64_t kMs = 1'000'000;

// A link that carries so much and says so a little later, with a sender that
// always has more.
class Link {
 public:
  explicit Link(SendWindow* window) : window_(window) {}

  // Runs for a while; returns for what part of it the link was busy.
  double Run(int64_t for_ns, double bytes_per_ns) {
    const int64_t end_ns = now_ns_ + for_ns;
    const auto slice_ns = static_cast<int64_t>(static_cast<double>(kSliceBytes) / bytes_per_ns);
    int64_t busy_ns = 0;
    while (now_ns_ < end_ns) {
      while (in_flight_ == 0 || in_flight_ + kSliceBytes <= window_->Bytes(1)) {
        in_flight_ += kSliceBytes;
        window_->OnSent(way_, kSliceBytes, now_ns_);
        free_at_ns_ = std::max(free_at_ns_, now_ns_) + slice_ns;
        busy_ns += slice_ns;
        told_at_ns_.push_back(free_at_ns_ + kDelayNs);
      }
      now_ns_ = told_at_ns_.front();
      told_at_ns_.pop_front();
      in_flight_ -= kSliceBytes;
      window_->OnReceived(way_, kSliceBytes, now_ns_);
    }
    return static_cast<double>(busy_ns) / static_cast<double>(for_ns);
  }

 private:
  SendWindow* const window_;
  SendWindow::Way way_;
  int64_t now_ns_ = 1;
  int64_t free_at_ns_ = 0;
  uint64_t in_flight_ = 0;
  std::deque<int64_t> told_at_ns_;
};

TEST_CASE("SendWindow: begins with little, and a slice for each way", "[schedule]") {
  SendWindow window;
  SendWindow::Way way;
  CHECK(window.Bytes(1) == kMiB + kKeptBackBytes);
  window.OnSent(way, kSliceBytes, 5);
  CHECK(window.Bytes(1) == kMiB + kKeptBackBytes + 3 * kSliceBytes);
  CHECK(window.Bytes(4) == kMiB + 4 * kKeptBackBytes + 6 * kSliceBytes);
  window.OnReceived(way, kSliceBytes / 2,
                    10);  // Of a slice only part: no sample.
  CHECK(window.Bytes(1) == kMiB + kKeptBackBytes + 3 * kSliceBytes);
  window.OnReceived(way, 0, 10);
  CHECK(window.Bytes(1) == kMiB + kKeptBackBytes + 3 * kSliceBytes);
}

TEST_CASE("SendWindow: keeps links of any speed full, and slow ones short", "[schedule]") {
  for (const double gigabits : {0.1, 0.5, 1.0, 10.0, 100.0}) {
    CAPTURE(gigabits);
    const double bytes_per_ns = gigabits / 8;
    SendWindow window;
    Link link(&window);
    link.Run(2000 * kMs, bytes_per_ns);
    CHECK(link.Run(2000 * kMs, bytes_per_ns) > 0.98);
    // What a slice that leaves now waits for: the slices that keep the way full
    // (and as much as one that may be kept back of the credit), and 10 ms.
    const auto wait_ms = static_cast<double>(window.Bytes(1)) / bytes_per_ns / 1e6;
    const auto slices_ms = 4 * static_cast<double>(kSliceBytes) / bytes_per_ns / 1e6;
    CHECK(wait_ms <= slices_ms + 11);
  }
}

TEST_CASE("SendWindow: follows a link that gets slower, and faster", "[schedule]") {
  SendWindow window;
  Link link(&window);
  link.Run(1000 * kMs, 1.25);
  CHECK(window.Bytes(1) > 12 * kMiB);
  link.Run(3000 * kMs, 0.0125);
  CHECK(window.Bytes(1) < 5 * kSliceBytes);
  link.Run(1500 * kMs, 1.25);
  CHECK(window.Bytes(1) > 12 * kMiB);
}

TEST_CASE("SendWindow: figures of a peer that make no sense harm nothing", "[schedule]") {
  SendWindow window;
  SendWindow::Way way;
  window.OnReceived(way, UINT64_MAX / 2, 1);
  window.OnSent(way, kSliceBytes, 5);
  window.OnReceived(way, UINT64_MAX / 2, 6);
  window.OnReceived(way, UINT64_MAX / 2, 7);
  const uint64_t known_bytes = window.Bytes(1);
  window.OnSent(way, kSliceBytes, 8);
  window.OnReceived(way, kSliceBytes, 2);  // A clock that went back.
  CHECK(window.Bytes(1) == known_bytes);
}

}  // namespace
}  // namespace talweg::schedule
