// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/held_credit.h"

#include <algorithm>

#include "libs/base/bytes.h"

namespace talweg::aggregator {
namespace {

constexpr uint64_t kPieceBytes = 64 * kKiB;

}  // namespace

void HeldCredit::SetWants(ConnectionId connection, bool wants, int64_t now_ns) {
  const bool is_new = wants ? wanting_.insert(connection).second : wanting_.erase(connection) > 0;
  if (is_new) link_->share.SetWants(job_, !wanting_.empty(), now_ns);
}

void HeldCredit::OnReceived(uint64_t bytes, int64_t now_ns) {
  link_->share.OnReceived(job_, bytes, now_ns);
}

void HeldCredit::OnSent(uint64_t bytes, int64_t now_ns) {
  link_->share.OnSent(job_, bytes, now_ns);
}

void HeldCredit::Hold(ConnectionId connection, uint64_t bytes) {
  uint64_t& held_bytes = bytes_[connection];
  if (held_bytes == 0) turns_.push_back(connection);
  held_bytes += bytes;
  link_->has_held_credit = true;
}

bool HeldCredit::GiveSome(int64_t now_ns, const Give& give) {
  if (!turns_.empty()) GiveByTurns(now_ns, give);
  is_late_ = !turns_.empty();
  return is_late_;
}

void HeldCredit::GiveByTurns(int64_t now_ns, const Give& give) {
  uint64_t room_bytes = link_->share.RoomBytes(job_, now_ns);
  while (!turns_.empty()) {
    const ConnectionId next = turns_.front();
    const auto held = bytes_.find(next);
    if (held == bytes_.end()) {
      turns_.pop_front();
      continue;
    }
    // Members take turns, as a sum needs all of them.
    const uint64_t bytes = std::min({held->second, room_bytes, kPieceBytes});
    if (bytes == 0) return;
    link_->share.OnGiven(job_, bytes);
    room_bytes -= bytes;
    held->second -= bytes;
    give(next, bytes);
    turns_.pop_front();
    if (held->second > 0) {
      turns_.push_back(next);
    } else {
      bytes_.erase(held);
    }
  }
}

}  // namespace talweg::aggregator
