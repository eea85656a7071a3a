// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_DEADLINE_TIMER_H_
#define TALWEG_LIBS_TRANSPORT_DEADLINE_TIMER_H_

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "libs/base/descriptor.h"

namespace talweg::transport {

// A descriptor that becomes readable when a time is over.
class DeadlineTimer {
 public:
  // Returns false if the process has no descriptors left.
  bool Open() {
    timer_.Reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    return timer_.valid();
  }
  int descriptor() const { return timer_.get(); }

  // Rings in `left_ns`, at once if that is not positive; nullopt: never.
  void RingIn(std::optional<int64_t> left_ns) {
    itimerspec timer{};
    if (left_ns) {
      const int64_t ns = std::max<int64_t>(*left_ns, 1);
      timer.it_value.tv_sec = ns / 1'000'000'000;
      timer.it_value.tv_nsec = ns % 1'000'000'000;
    }
    timerfd_settime(timer_.get(), 0, &timer, nullptr);
  }
  // Makes the descriptor not readable until the timer rings again.
  void Quieten() {
    uint64_t ignored;
    [[maybe_unused]] const ssize_t got = read(timer_.get(), &ignored, sizeof(ignored));
  }

 private:
  Descriptor timer_;
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_DEADLINE_TIMER_H_
