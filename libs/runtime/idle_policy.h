// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_IDLE_POLICY_H_
#define TALWEG_LIBS_RUNTIME_IDLE_POLICY_H_

#include <cstdint>

namespace talweg::runtime {

// Decides how an idle loop waits for work: it spins, or it sleeps.
//
// A wake-up takes 20 to 50 us, mostly because the idle CPU has halted. A loop that spins yields its
// CPU and looks again. So the CPU stays awake, and every other thread that can run there runs. It
// pays to spin where work comes soon:
//
//   - The limit follows how long the loop has been idle before, as in the kernel's halt polling
//     (Documentation/virt/kvm/halt-polling.rst). An idle time that is longer than the limit, and
//     not longer than the maximum, doubles the limit. A longer one halves it.
//   - Where another thread computes on the same CPU, a yield gives it a whole time slice, and no
//     work wakes the loop meanwhile. A loop that sleeps is back at once, because a wake-up
//     preempts. So after a long yield the loop only sleeps for a while.
class IdlePolicy {
 public:
  // kSpin: yield the CPU, then look for work again.
  enum class Wait { kSpin, kSleep };

  static constexpr int64_t kSpinNsMin = 10'000;  // The lowest limit but 0.
  // Threads that handle messages give the CPU back sooner, and those that compute do not.
  static constexpr int64_t kLongYieldNs = 300'000;
  static constexpr int64_t kOnlySleepsNs = 20'000'000;

  // `spin_ns_max`: the highest limit. 0: it always sleeps.
  explicit IdlePolicy(int64_t spin_ns_max) : spin_ns_max_(spin_ns_max) {}

  // A pass from `begin_ns` to `end_ns` has found work.
  void Worked(int64_t begin_ns, int64_t end_ns);

  // A pass that began at `begin_ns` has found none. Returns how to wait before the next one.
  Wait Idle(int64_t begin_ns);

  int64_t spin_ns_max() const { return spin_ns_max_; }
  int64_t limit_ns() const { return limit_ns_; }

 private:
  // Learns from the last wait, which has ended as a pass begins.
  void EndWait(int64_t begin_ns);

  const int64_t spin_ns_max_;
  int64_t limit_ns_ = 0;
  int64_t idle_since_ns_ = 0;
  int64_t spins_since_ns_ = -1;  // When the last wait began, if it is a spin; else -1.
  int64_t sleeps_until_ns_ = 0;
};

}  // namespace talweg::runtime

#endif  // TALWEG_LIBS_RUNTIME_IDLE_POLICY_H_
