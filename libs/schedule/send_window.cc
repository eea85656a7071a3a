// SPDX-License-Identifier: Apache-2.0
#include "libs/schedule/send_window.h"

#include <algorithm>
#include <optional>

#include "libs/wire/frames.h"

namespace talweg::schedule {
namespace {

constexpr uint64_t kFullMs = 10;
constexpr uint64_t kSlicesMin = 2;  // And one for each way.
constexpr uint64_t kFirstBytes = 1024 * 1024;
constexpr int64_t kPeriodNs = 500'000'000;
constexpr uint64_t kNsPerMs = 1'000'000;

}  // namespace

uint64_t SendWindow::BytesPerMs() const { return std::max(fastest_, fastest_before_); }

uint64_t SendWindow::Bytes(size_t way_count) const {
  const uint64_t full_bytes =
      std::max(BytesPerMs() * kFullMs, fastest_ == 0 ? kFirstBytes : uint64_t{0});
  return full_bytes + (kSlicesMin + way_count) * largest_bytes_ +
         way_count * wire::kKeptCreditBytes;
}

void SendWindow::OnSent(Way& way, uint64_t bytes, int64_t now_ns) {
  if (bytes == 0) return;
  largest_bytes_ = std::max(largest_bytes_, bytes);
  way.sent_bytes_ += bytes;
  way.under_way_.push_back({way.sent_bytes_, received_bytes_, now_ns});
}

void SendWindow::OnReceived(Way& way, uint64_t bytes, int64_t now_ns) {
  // The figure comes from a peer: more than was sent counts as all of it.
  bytes = std::min(bytes, way.sent_bytes_ - way.received_bytes_);
  way.received_bytes_ += bytes;
  received_bytes_ += bytes;
  std::optional<Way::Sent> last;
  while (!way.under_way_.empty() && way.under_way_.front().end_bytes <= way.received_bytes_) {
    last = way.under_way_.front();
    way.under_way_.pop_front();
  }
  if (!last || now_ns <= last->at_ns) return;
  const uint64_t sample = (received_bytes_ - last->received_bytes) * kNsPerMs /
                          static_cast<uint64_t>(now_ns - last->at_ns);
  if (now_ns - period_since_ns_ >= kPeriodNs) {
    period_since_ns_ = now_ns;
    fastest_before_ = fastest_;
    fastest_ = 0;
  }
  fastest_ = std::max({fastest_, sample, uint64_t{1}});
}

}  // namespace talweg::schedule
