// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/scheduler_silence.h"

#include <catch2/catch.hpp>

namespace talweg::pipeline {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kLease = 10 * kSecond;

struct Clocked {
  // Ticks each second, as the core does.
  void Wait(int64_t seconds) {
    for (int64_t i = 0; i < seconds; ++i) silence.Count(now_ns += kSecond);
  }

  TickTimer timer;
  SchedulerSilence silence{30 * kSecond, &timer};
  int64_t now_ns = 100 * kSecond;
};

TEST_CASE("SchedulerSilence: a silence is too long at the limit, and over with an answer",
          "[pipeline]") {
  Clocked c;
  c.silence.OnSilent(c.now_ns);
  CHECK(c.silence.is_silent());
  CHECK(c.timer.next_ns() == c.now_ns + kSecond);
  c.Wait(29);
  CHECK_FALSE(c.silence.IsTooLong());
  CHECK_FALSE(c.silence.CannotDecide());
  c.Wait(1);
  CHECK(c.silence.IsTooLong());
  CHECK(c.silence.CannotDecide());
  c.silence.OnAnswers(kLease, c.now_ns);
  CHECK_FALSE(c.silence.is_silent());
  CHECK_FALSE(c.silence.IsTooLong());
  CHECK_FALSE(c.silence.CannotDecide());
}

TEST_CASE("SchedulerSilence: a scheduler that comes and goes is silent since it first was",
          "[pipeline]") {
  Clocked c;
  c.silence.OnSilent(c.now_ns);
  c.Wait(12);
  c.silence.OnAnswers(kLease, c.now_ns);
  c.Wait(10);
  c.silence.OnSilent(c.now_ns);
  CHECK(c.silence.has_relapsed());
  c.Wait(7);
  CHECK_FALSE(c.silence.CannotDecide());
  c.Wait(1);
  CHECK(c.silence.CannotDecide());
  CHECK_FALSE(c.silence.IsTooLong());  // This silence by itself is short.

  SECTION("That holds while it answers, until it has for two leases") {
    c.silence.OnAnswers(kLease, c.now_ns);
    CHECK(c.silence.CannotDecide());
    c.Wait(19);
    CHECK(c.silence.CannotDecide());
    c.Wait(1);
    CHECK_FALSE(c.silence.has_relapsed());
    CHECK_FALSE(c.silence.CannotDecide());
  }
  SECTION("That holds over the silences that follow") {
    c.silence.OnAnswers(kLease, c.now_ns);
    c.Wait(5);
    c.silence.OnSilent(c.now_ns);
    CHECK(c.silence.CannotDecide());
  }
}

TEST_CASE("SchedulerSilence: a scheduler that has answered for two leases begins anew",
          "[pipeline]") {
  Clocked c;
  c.silence.OnSilent(c.now_ns);
  c.Wait(29);
  c.silence.OnAnswers(kLease, c.now_ns);
  c.Wait(20);
  c.silence.OnSilent(c.now_ns);
  CHECK_FALSE(c.silence.has_relapsed());
  c.Wait(29);
  CHECK_FALSE(c.silence.CannotDecide());
  c.Wait(1);
  CHECK(c.silence.CannotDecide());
}

TEST_CASE("SchedulerSilence: time in which the process is stopped does not count", "[pipeline]") {
  Clocked c;
  c.silence.OnSilent(c.now_ns);
  c.silence.Count(c.now_ns += 3600 * kSecond);
  CHECK_FALSE(c.silence.IsTooLong());
  c.Wait(28);
  CHECK(c.silence.IsTooLong());
}

TEST_CASE("SchedulerSilence: a silence that is reported twice counts once", "[pipeline]") {
  Clocked c;
  c.silence.OnSilent(c.now_ns);
  c.Wait(29);
  c.silence.OnSilent(c.now_ns);
  c.Wait(1);
  CHECK(c.silence.IsTooLong());
}

TEST_CASE("SchedulerSilence: without a limit no silence is too long", "[pipeline]") {
  TickTimer timer;
  SchedulerSilence silence(0, &timer);
  silence.OnSilent(kSecond);
  silence.Count(3600 * kSecond);
  CHECK(silence.is_silent());
  CHECK_FALSE(silence.IsTooLong());
  CHECK_FALSE(silence.CannotDecide());
  CHECK(timer.next_ns() == TickTimer::kNever);
}

}  // namespace
}  // namespace talweg::pipeline
