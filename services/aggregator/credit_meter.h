// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_CREDIT_METER_H_
#define TALWEG_SERVICES_AGGREGATOR_CREDIT_METER_H_

#include <algorithm>
#include <cstdint>

#include "libs/wire/frames.h"

namespace talweg::aggregator {

// Says how much credit may wait until a result carries it. A frame for credit alone would wake an
// agent that does not need the credit yet. The amount is what arrives on the connection in a
// millisecond, because an agent has more than that in flight, and at most 1/kPartMax of the granted
// credit, but at least wire::kKeptCreditBytes (docs/protocol.md, section 5).
class CreditMeter {
 public:
  static constexpr uint64_t kPartMax = 8;
  static constexpr int64_t kPeriodNs = 1'000'000;

  // `bytes` of contributions have come.
  void OnReceived(uint64_t bytes, int64_t now_ns) {
    bytes_ += bytes;
    const int64_t elapsed_ns = now_ns - since_ns_;
    if (elapsed_ns < kPeriodNs) return;
    bytes_in_period_ =
        static_cast<uint64_t>(static_cast<double>(bytes_) * static_cast<double>(kPeriodNs) /
                              static_cast<double>(elapsed_ns));
    bytes_ = 0;
    since_ns_ = now_ns;
  }

  uint64_t KeptBytes(uint64_t credit_bytes) const {
    if (credit_bytes <= wire::kSmallCreditBytes) return 0;
    return std::max(std::min(bytes_in_period_, credit_bytes / kPartMax), wire::kKeptCreditBytes);
  }

 private:
  uint64_t bytes_ = 0;
  int64_t since_ns_ = 0;
  uint64_t bytes_in_period_ = 0;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_CREDIT_METER_H_
