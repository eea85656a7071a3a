// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_STEADY_TIME_H_
#define TALWEG_LIBS_RPC_STEADY_TIME_H_

#include <chrono>
#include <cstdint>

namespace talweg::rpc {

// The time of a clock that is never set, in nanoseconds.
inline int64_t SteadyNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_STEADY_TIME_H_
