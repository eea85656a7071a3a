// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_TICK_TIMER_H_
#define TALWEG_LIBS_PIPELINE_TICK_TIMER_H_

#include <algorithm>
#include <cstdint>
#include <limits>

namespace talweg::pipeline {

// When the core's next tick is due: the earliest time that any of its parts has asked for.
class TickTimer {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  // Asks for a tick at `at_ns` at the latest.
  void Ask(int64_t at_ns) { next_ns_ = std::min(next_ns_, at_ns); }
  void Clear() { next_ns_ = kNever; }
  int64_t next_ns() const { return next_ns_; }

 private:
  int64_t next_ns_ = kNever;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_TICK_TIMER_H_
