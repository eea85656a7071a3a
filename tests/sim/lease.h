// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_LEASE_H_
#define TALWEG_TESTS_SIM_LEASE_H_

#include <cstdint>

#include "libs/membership/requests.h"
#include "tests/sim/timeline.h"

namespace talweg::sim {

inline constexpr int64_t kLeaseNs = membership::Config{}.lease_ns;
// As in libs/rpc: how often a member renews its lease.
inline constexpr int64_t kRenewNs = 2 * kSecond;

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_LEASE_H_
