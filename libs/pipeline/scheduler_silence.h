// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_SCHEDULER_SILENCE_H_
#define TALWEG_LIBS_PIPELINE_SCHEDULER_SILENCE_H_

#include <cstdint>

#include "libs/base/awake_time.h"
#include "libs/pipeline/tick_timer.h"

namespace talweg::pipeline {

// For how long the scheduler has not been able to say who is dead (docs/protocol.md, section 8).
//
//   kDecides  --silent-->  kSilent    --answers-->  kReturned
//   kReturned --silent-->  kRelapsed  --answers-->  kUnsteady  --silent-->  kRelapsed
//   kReturned, kUnsteady  --two leases later-->  kDecides
//
// A scheduler that comes back renews all leases. Only at the end of a second lease can it have
// noticed that a first one has lapsed. If it falls silent before that, it could not decide
// anything, so the silence counts from the beginning of the series.
class SchedulerSilence {
 public:
  // A silence of `unreachable_ns` is too long; 0: none is. `timer` outlives this.
  SchedulerSilence(int64_t unreachable_ns, TickTimer* timer)
      : unreachable_ns_(unreachable_ns), timer_(timer) {}

  void OnSilent(int64_t now_ns);
  void OnAnswers(int64_t lease_ns, int64_t now_ns);
  // Counts the time until now, and asks for the next tick. Time in which this process was stopped
  // does not count.
  void Count(int64_t now_ns);

  bool is_silent() const { return state_ == State::kSilent || state_ == State::kRelapsed; }
  // Whether the scheduler comes and goes.
  bool has_relapsed() const { return state_ == State::kRelapsed || state_ == State::kUnsteady; }
  // Whether the present silence alone is too long.
  bool IsTooLong() const {
    return is_silent() && unreachable_ns_ > 0 && silent_ns_ >= unreachable_ns_;
  }
  // Whether the scheduler has been unable to say who is dead for too long.
  bool CannotDecide() const {
    return (is_silent() || has_relapsed()) && unreachable_ns_ > 0 &&
           undecided_ns_ >= unreachable_ns_;
  }

 private:
  enum class State : uint8_t {
    kDecides = 1,
    kSilent = 2,
    kReturned = 3,
    kRelapsed = 4,
    kUnsteady = 5,
  };

  const int64_t unreachable_ns_;
  TickTimer* const timer_;
  State state_ = State::kDecides;
  int64_t silent_ns_ = 0;     // The present silence.
  int64_t undecided_ns_ = 0;  // Since the current series of silences began.
  int64_t answers_since_ns_ = 0;
  int64_t decides_from_ns_ = 0;  // If the scheduler answers until then.
  AwakeTime time_;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_SCHEDULER_SILENCE_H_
