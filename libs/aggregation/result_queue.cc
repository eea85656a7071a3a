// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/result_queue.h"

#include "libs/base/check.h"

namespace talweg::aggregation {

bool ResultQueue::Add(const SendResult& result) {
  TALWEG_CHECK(result.travel_bytes > 0);
  if (under_way_bytes_ < window_bytes_) {
    TALWEG_CHECK(waiting_.empty());
    under_way_bytes_ += result.travel_bytes;
    return true;
  }
  waiting_.emplace(Turn{-int64_t{result.priority}, next_arrival_++}, result);
  waiting_bytes_ += result.travel_bytes;
  return false;
}

void ResultQueue::OnWritten(uint64_t bytes) {
  TALWEG_CHECK(bytes <= under_way_bytes_);
  under_way_bytes_ -= bytes;
}

std::optional<SendResult> ResultQueue::Take() {
  return under_way_bytes_ < window_bytes_ ? TakeAnyway() : std::nullopt;
}

std::optional<SendResult> ResultQueue::TakeAnyway() {
  if (waiting_.empty()) return std::nullopt;
  SendResult result = std::move(waiting_.begin()->second);
  waiting_.erase(waiting_.begin());
  waiting_bytes_ -= result.travel_bytes;
  under_way_bytes_ += result.travel_bytes;
  return result;
}

}  // namespace talweg::aggregation
