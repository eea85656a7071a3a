// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_CREDIT_METER_H_
#define TALWEG_SERVICES_AGGREGATOR_CREDIT_METER_H_

#include <cstdint>

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
  void OnReceived(uint64_t bytes, int64_t now_ns);

  uint64_t KeptBytes(uint64_t credit_bytes) const;

 private:
  uint64_t bytes_ = 0;
  int64_t since_ns_ = 0;
  uint64_t bytes_in_period_ = 0;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_CREDIT_METER_H_
