// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/scheduler_silence.h"

#include <algorithm>

namespace talweg::pipeline {
namespace {

// While the scheduler is silent, a running process notices time at least this often.
constexpr int64_t kTickNs = 1'000'000'000;
static_assert(2 * kTickNs <= AwakeTime::kGapMaxNs, "a tick may come late");

}  // namespace

void SchedulerSilence::OnSilent(int64_t now_ns) {
  if (is_silent()) return;
  Count(now_ns);
  switch (state_) {
    case State::kDecides:
      state_ = State::kSilent;
      undecided_ns_ = 0;
      break;
    case State::kReturned:
      state_ = State::kRelapsed;
      undecided_ns_ += now_ns - answers_since_ns_;
      break;
    case State::kUnsteady: state_ = State::kRelapsed; break;
    case State::kSilent:
    case State::kRelapsed: break;
  }
  silent_ns_ = 0;
  time_.Begin(now_ns);
  Count(now_ns);
}

void SchedulerSilence::OnAnswers(int64_t lease_ns, int64_t now_ns) {
  if (!is_silent()) return;
  Count(now_ns);
  state_ = state_ == State::kSilent ? State::kReturned : State::kUnsteady;
  answers_since_ns_ = now_ns;
  decides_from_ns_ = now_ns + 2 * lease_ns;
}

void SchedulerSilence::Count(int64_t now_ns) {
  if (!is_silent() && now_ns >= decides_from_ns_) state_ = State::kDecides;
  if ((!is_silent() && !has_relapsed()) || unreachable_ns_ == 0) return;
  const int64_t passed_ns = time_.Take(now_ns);
  if (is_silent()) silent_ns_ += passed_ns;
  undecided_ns_ += passed_ns;
  const int64_t left_ns = is_silent() ? unreachable_ns_ - silent_ns_ : 0;
  timer_->Ask(now_ns + (left_ns > 0 ? std::min(left_ns, kTickNs) : kTickNs));
}

}  // namespace talweg::pipeline
