// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/idle_policy.h"

#include <algorithm>

namespace talweg::runtime {

void IdlePolicy::Worked(int64_t begin_ns, int64_t end_ns) {
  EndWait(begin_ns);
  const int64_t idle_ns = begin_ns - idle_since_ns_;
  if (idle_ns > spin_ns_max_) {
    limit_ns_ = limit_ns_ > kSpinNsMin ? limit_ns_ / 2 : 0;
  } else if (idle_ns > limit_ns_) {
    limit_ns_ = std::min(spin_ns_max_, std::max(kSpinNsMin, limit_ns_ * 2));
  }
  idle_since_ns_ = end_ns;
}

IdlePolicy::Wait IdlePolicy::Idle(int64_t begin_ns) {
  EndWait(begin_ns);
  if (begin_ns - idle_since_ns_ >= limit_ns_ || begin_ns < sleeps_until_ns_) return Wait::kSleep;
  spins_since_ns_ = begin_ns;
  return Wait::kSpin;
}

void IdlePolicy::EndWait(int64_t begin_ns) {
  if (spins_since_ns_ >= 0 && begin_ns - spins_since_ns_ > kLongYieldNs) {
    sleeps_until_ns_ = begin_ns + kOnlySleepsNs;
  }
  spins_since_ns_ = -1;
}

}  // namespace talweg::runtime
