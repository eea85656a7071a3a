// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/leases.h"

#include <algorithm>

#include "libs/membership/texts.h"

namespace talweg::membership {

int64_t Leases::ObserveGap(int64_t now_ns) {
  const int64_t silence_ns = now_ns - last_ns_;
  last_ns_ = std::max(now_ns, last_ns_);
  if (silence_ns <= lease_ns_ / 2) return 0;
  streams_count_from_ns_ = EndNs(now_ns);
  return silence_ns;
}

std::string Leases::LapseText(const std::string& shut_out) const {
  const std::string text = "was silent for " + SecondsText(lease_ns_) + " (its lease has lapsed)";
  return shut_out.empty() ? text : text + ", as its connection has ended: " + shut_out;
}

}  // namespace talweg::membership
