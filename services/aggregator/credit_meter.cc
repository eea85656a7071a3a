// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/credit_meter.h"

#include <algorithm>

#include "libs/wire/frames.h"

namespace talweg::aggregator {

void CreditMeter::OnReceived(uint64_t bytes, int64_t now_ns) {
  bytes_ += bytes;
  const int64_t elapsed_ns = now_ns - since_ns_;
  if (elapsed_ns < kPeriodNs) return;
  bytes_in_period_ =
      static_cast<uint64_t>(static_cast<double>(bytes_) * static_cast<double>(kPeriodNs) /
                            static_cast<double>(elapsed_ns));
  bytes_ = 0;
  since_ns_ = now_ns;
}

uint64_t CreditMeter::KeptBytes(uint64_t credit_bytes) const {
  if (credit_bytes <= wire::kSmallCreditBytes) return 0;
  return std::max(std::min(bytes_in_period_, credit_bytes / kPartMax), wire::kKeptCreditBytes);
}

}  // namespace talweg::aggregator
