// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_MANUAL_CLOCK_H_
#define TALWEG_LIBS_RUNTIME_MANUAL_CLOCK_H_

#include <atomic>
#include <cstdint>

#include "libs/base/check.h"
#include "libs/runtime/clock.h"

namespace talweg::runtime {

// A clock that a test moves. Any thread may read or move it.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(int64_t now_ns = 0) : now_ns_(now_ns) {}

  int64_t NowNs() const override { return now_ns_.load(std::memory_order_relaxed); }

  void Advance(int64_t by_ns) {
    TALWEG_CHECK(by_ns >= 0);
    now_ns_.fetch_add(by_ns, std::memory_order_relaxed);
  }

 private:
  std::atomic<int64_t> now_ns_;
};

}  // namespace talweg::runtime

#endif  // TALWEG_LIBS_RUNTIME_MANUAL_CLOCK_H_
