// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_CLOCK_H_
#define TALWEG_LIBS_RUNTIME_CLOCK_H_

#include <cstdint>

namespace talweg::runtime {

// Time that never goes back, in nanoseconds since an arbitrary moment of this host.
// Implementations may be called by any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t NowNs() const = 0;
};

// CLOCK_MONOTONIC: stands still while the host is suspended.
class MonotonicClock final : public Clock {
 public:
  int64_t NowNs() const override;
};

// The time of day, for people: nanoseconds since 1970, UTC.
int64_t UnixNowNs();

}  // namespace talweg::runtime

#endif  // TALWEG_LIBS_RUNTIME_CLOCK_H_
