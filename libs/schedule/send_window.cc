// SPDX-License-Identifier: Apache-2.0
#include "libs/schedule/send_window.h"

#include <algorithm>
#include <optional>

namespace talweg::schedule {
namespace {

constexpr uint64_t kFullMs = 20;
constexpr uint64_t kSlicesMin = 3;
constexpr int64_t kPeriodNs = 500'000'000;
constexpr uint64_t kNsPerMs = 1'000'000;

}  // namespace

void SendWindow::OnSent(uint64_t bytes, int64_t now_ns) {
  if (bytes == 0 || granted_bytes_ == UINT64_MAX) return;
  sent_bytes_ += bytes;
  largest_bytes_ = std::max(largest_bytes_, bytes);
  under_way_.push_back({sent_bytes_, received_bytes_, now_ns});
}

void SendWindow::OnReceived(uint64_t bytes, int64_t now_ns) {
  // The figure comes from a peer: more than was sent counts as all of it.
  received_bytes_ += std::min(bytes, sent_bytes_ - received_bytes_);
  std::optional<Sent> last;
  while (!under_way_.empty() && under_way_.front().end_bytes <= received_bytes_) {
    last = under_way_.front();
    under_way_.pop_front();
  }
  if (!last || now_ns <= last->at_ns) return;
  const uint64_t sample = (received_bytes_ - last->received_bytes) * kNsPerMs /
                          static_cast<uint64_t>(now_ns - last->at_ns);
  if (now_ns - period_since_ns_ >= kPeriodNs) {
    period_since_ns_ = now_ns;
    fastest_before_ = fastest_;
    fastest_ = 0;
  }
  fastest_ = std::max(fastest_, sample);
  window_bytes_ = std::max(fastest_, fastest_before_) * kFullMs + kSlicesMin * largest_bytes_;
}

}  // namespace talweg::schedule
