// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_DEADLINE_H_
#define TALWEG_LIBS_SHM_CLIENT_DEADLINE_H_

#include <time.h>

#include <cstdint>

namespace talweg::shm {

inline constexpr int64_t kNsPerSecond = 1'000'000'000;

inline int64_t MonotonicNs() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * kNsPerSecond + now.tv_nsec;
}

inline timespec ToTimespec(int64_t ns) {
  return {static_cast<time_t>(ns / kNsPerSecond), static_cast<long>(ns % kNsPerSecond)};
}

// When a call's time is over. A negative timeout means never.
class Deadline {
 public:
  explicit Deadline(int64_t timeout_ns) {
    if (timeout_ns < 0) return;
    const int64_t now_ns = MonotonicNs();
    if (timeout_ns < kNever - now_ns) at_ns_ = now_ns + timeout_ns;
  }
  static Deadline Earlier(const Deadline& a, const Deadline& b) {
    return a.at_ns_ < b.at_ns_ ? a : b;
  }

  bool never() const { return at_ns_ == kNever; }
  bool Passed(int64_t now_ns) const { return now_ns >= at_ns_; }
  // At least 0.
  int64_t LeftNs(int64_t now_ns) const { return now_ns >= at_ns_ ? 0 : at_ns_ - now_ns; }

 private:
  static constexpr int64_t kNever = INT64_MAX;
  int64_t at_ns_ = kNever;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_DEADLINE_H_
