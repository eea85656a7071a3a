// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/idle_policy.h"

#include <algorithm>
#include <cstdint>

#include <catch2/catch.hpp>

namespace talweg::runtime {
namespace {

using Wait = IdlePolicy::Wait;

constexpr int64_t kMax = 200'000;
constexpr int64_t kPassNs = 50;

// A loop whose passes take kPassNs each. It finds work when it is told to.
class Loop {
 public:
  explicit Loop(int64_t spin_ns_max) : policy_(spin_ns_max) {}

  // Is idle for `idle_ns`, then works for one pass. Returns how long the loop spins before it
  // sleeps; -1 if it does not sleep.
  int64_t WorkAfter(int64_t idle_ns) {
    const int64_t idle_since_ns = now_ns_;
    const int64_t works_at_ns = now_ns_ + idle_ns;
    int64_t slept_after_ns = -1;
    while (now_ns_ < works_at_ns) {
      if (policy_.Idle(now_ns_) == Wait::kSleep) {
        slept_after_ns = now_ns_ - idle_since_ns;
        now_ns_ = works_at_ns;
      } else {
        now_ns_ += kPassNs;
      }
    }
    policy_.Worked(now_ns_, now_ns_ + kPassNs);
    now_ns_ += kPassNs;
    return slept_after_ns;
  }

  // Lets the policy choose a wait that ends after `wait_ns`, without work.
  Wait WaitFor(int64_t wait_ns) {
    const Wait wait = policy_.Idle(now_ns_);
    now_ns_ += wait_ns;
    return wait;
  }

  IdlePolicy& policy() { return policy_; }

 private:
  IdlePolicy policy_;
  int64_t now_ns_ = 1'000'000'000;
};

TEST_CASE("IdlePolicy: a loop that is idle for long sleeps at once", "[runtime]") {
  Loop loop(kMax);
  for (int i = 0; i < 10; ++i) CHECK(loop.WorkAfter(10 * kMax) == 0);
}

TEST_CASE("IdlePolicy: a loop spins once its idle times are short", "[runtime]") {
  Loop loop(kMax);
  loop.WorkAfter(10 * kMax);
  // Each sleep that spinning would have replaced doubles the limit.
  CHECK(loop.WorkAfter(100'000) == 0);
  CHECK(loop.WorkAfter(100'000) == IdlePolicy::kSpinNsMin);
  CHECK(loop.WorkAfter(100'000) == 2 * IdlePolicy::kSpinNsMin);
  CHECK(loop.WorkAfter(100'000) == 4 * IdlePolicy::kSpinNsMin);
  CHECK(loop.WorkAfter(100'000) == 8 * IdlePolicy::kSpinNsMin);
  for (int i = 0; i < 10; ++i) CHECK(loop.WorkAfter(100'000) == -1);
  // It grows no further than these idle times need.
  CHECK(loop.policy().limit_ns() == 16 * IdlePolicy::kSpinNsMin);
}

TEST_CASE("IdlePolicy: the limit stays within the maximum, and falls to nothing", "[runtime]") {
  Loop loop(kMax);
  for (int i = 0; i < 10; ++i) loop.WorkAfter(kMax);
  CHECK(loop.policy().limit_ns() == kMax);
  int64_t limit_ns = kMax;
  for (int i = 0; i < 10; ++i) {
    CHECK(loop.WorkAfter(10 * kMax) == limit_ns);
    CHECK(loop.policy().limit_ns() < std::max<int64_t>(limit_ns, 1));
    limit_ns = loop.policy().limit_ns();
  }
  CHECK(limit_ns == 0);
}

TEST_CASE("IdlePolicy: with a maximum of 0 it always sleeps", "[runtime]") {
  Loop loop(0);
  for (const int64_t idle_ns : {1'000, 10'000, 1'000'000}) {
    for (int i = 0; i < 5; ++i) CHECK(loop.WorkAfter(idle_ns) == 0);
  }
}

TEST_CASE("IdlePolicy: after a yield to a thread that computes it sleeps for a while",
          "[runtime]") {
  Loop loop(kMax);
  for (int i = 0; i < 10; ++i) loop.WorkAfter(100'000);
  SECTION("the yield ends without work") {
    CHECK(loop.WaitFor(IdlePolicy::kLongYieldNs + 1) == Wait::kSpin);
    CHECK(loop.WaitFor(kPassNs) == Wait::kSleep);
    loop.WorkAfter(0);
  }
  SECTION("there is work when the yield ends") {
    CHECK(loop.WaitFor(IdlePolicy::kLongYieldNs + 1) == Wait::kSpin);
    loop.WorkAfter(0);
  }
  int sleeps = 0;
  while (loop.WorkAfter(100'000) == 0) ++sleeps;
  constexpr int64_t kSleeps = IdlePolicy::kOnlySleepsNs / (100'000 + kPassNs);
  CHECK(sleeps >= kSleeps);
  CHECK(sleeps <= kSleeps + 1);  // The last may begin within that time.
}

TEST_CASE("IdlePolicy: a yield to threads that handle messages changes nothing", "[runtime]") {
  Loop loop(kMax);
  for (int i = 0; i < 10; ++i) loop.WorkAfter(100'000);
  CHECK(loop.WaitFor(kPassNs) == Wait::kSpin);
  CHECK(loop.WaitFor(100'000) == Wait::kSpin);
  loop.WorkAfter(0);
  CHECK(loop.WorkAfter(100'000) == -1);
}

TEST_CASE("IdlePolicy: a long sleep says nothing of other threads", "[runtime]") {
  Loop loop(kMax);
  for (int i = 0; i < 10; ++i) loop.WorkAfter(100'000);
  loop.WorkAfter(10 * kMax);
  CHECK(loop.WorkAfter(50'000) == -1);
}

}  // namespace
}  // namespace talweg::runtime
