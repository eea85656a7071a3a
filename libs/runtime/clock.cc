// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/clock.h"

#include <time.h>

#include "libs/base/check.h"

namespace talweg::runtime {

int64_t MonotonicClock::NowNs() const {
  timespec now{};
  TALWEG_CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

int64_t UnixNowNs() {
  timespec now{};
  TALWEG_CHECK(clock_gettime(CLOCK_REALTIME, &now) == 0);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

}  // namespace talweg::runtime
