// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/held_credit.h"

#include <algorithm>
#include <utility>

#include "libs/base/bytes.h"

namespace talweg::aggregator {
namespace {

constexpr uint64_t kPieceBytes = 64 * kKiB;

}  // namespace

HeldCredit::HeldCredit(JobId job, SharedLink::Lane* lane)
    : lane_(lane), turn_{.use = lane->link().Begin(lane, job)} {}

void HeldCredit::Leave() {
  if (std::exchange(has_left_, true)) return;
  lane_->link().End(turn_.use);
}

void HeldCredit::SetWants(ConnectionId connection, bool wants) {
  if (wants) {
    wanting_.insert(connection);
  } else {
    wanting_.erase(connection);
  }
  turn_.wants = !wanting_.empty();
}

void HeldCredit::Hold(ConnectionId connection, uint64_t bytes) {
  uint64_t& held_bytes = bytes_[connection];
  if (held_bytes == 0) turns_.push_back(connection);
  held_bytes += bytes;
  turn_.held_bytes += bytes;
}

void HeldCredit::Forget(ConnectionId connection) {
  const auto held = bytes_.find(connection);
  if (held == bytes_.end()) return;
  turn_.held_bytes -= held->second;
  bytes_.erase(held);
}

bool HeldCredit::HasNews(bool may_have_room) const {
  if (has_left_) return false;
  if (turn_.received_bytes + turn_.sent_bytes > 0 || turn_.wants != has_said_wants_) return true;
  return turn_.held_bytes > 0 ? may_have_room || !is_late_ : is_late_;
}

void HeldCredit::GiveBack(const Give& give) {
  has_said_wants_ = turn_.wants;
  is_late_ = turn_.held_bytes > 0;
  while (turn_.given_bytes > 0) {
    const ConnectionId next = turns_.front();
    turns_.pop_front();
    const auto held = bytes_.find(next);
    if (held == bytes_.end()) continue;
    // Members take turns, because a sum needs all of them.
    const uint64_t bytes = std::min({held->second, turn_.given_bytes, kPieceBytes});
    turn_.given_bytes -= bytes;
    held->second -= bytes;
    give(next, bytes);
    if (held->second > 0) {
      turns_.push_back(next);
    } else {
      bytes_.erase(held);
    }
  }
}

}  // namespace talweg::aggregator
