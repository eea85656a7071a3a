// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_EVENT_LOOP_H_
#define TALWEG_LIBS_RUNTIME_EVENT_LOOP_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "libs/base/descriptor.h"
#include "libs/runtime/clock.h"
#include "libs/runtime/idle_policy.h"

namespace talweg::runtime {

// Something that an EventLoop asks for work in every pass.
class Poller {
 public:
  virtual ~Poller() = default;

  // Does the work that is there without blocking. Returns how much that was, 0 for nothing.
  virtual int Poll() = 0;

  // The loop is about to sleep. From here on, work for this poller makes a descriptor readable that
  // the loop watches, or wakes the loop (EventLoop::Wake). Returns false when there is work
  // already: then the loop polls again.
  virtual bool PrepareToSleep() { return true; }
};

// The duty cycle of one thread. It polls its pollers, runs its timers and serves its descriptors.
// When there is nothing to do it spins for a bounded time, which an IdlePolicy sets. Then it sleeps
// until a descriptor is ready, the next timer is due, or a thread wakes it.
//
// It belongs to the thread that calls Run. Everything is called on that thread, or before Run on
// the one that made the loop. Any thread may call Wake and Stop. Callbacks may add and remove
// anything, themselves included.
class EventLoop {
 public:
  struct Options {
    // Longest time to spin before sleeping (see IdlePolicy). 0: never spin. Negative: the default,
    // which is 0 in a control group with a CPU quota.
    int64_t spin_ns_max = -1;
  };
  using TimerId = uint64_t;

  // `clock` outlives the loop. RESOURCE_EXHAUSTED when the process has no descriptors left.
  static absl::StatusOr<std::unique_ptr<EventLoop>> Create(const Clock* clock, Options options);
  static absl::StatusOr<std::unique_ptr<EventLoop>> Create(const Clock* clock) {
    return Create(clock, Options{});
  }

  // `events` as for epoll (EPOLLIN, ...), level-triggered. `on_events` gets those that are ready.
  // The caller keeps the descriptor, and removes it before closing it. ALREADY_EXISTS if the loop
  // watches it already; otherwise as epoll_ctl(2) says.
  absl::Status AddDescriptor(int fd, uint32_t events, std::function<void(uint32_t)> on_events);
  // Watches a descriptor for other events.
  absl::Status ChangeDescriptor(int fd, uint32_t events);
  // Nothing is delivered for it afterwards. Ignores a descriptor that is not watched.
  void RemoveDescriptor(int fd);

  // Borrowed until it is removed.
  void AddPoller(Poller* poller);
  void RemovePoller(Poller* poller);

  // Calls `on_time` once, not before `deadline_ns` of the loop's clock. A sleeping loop is about
  // 0.1 ms late, or up to 1 ms where the kernel is older than 5.11.
  TimerId AddTimer(int64_t deadline_ns, std::function<void()> on_time);
  // Calls `on_time` every `period_ns`, first after one period. Missed periods are not made up for.
  TimerId AddPeriodicTimer(int64_t period_ns, std::function<void()> on_time);
  // A timer that has run, or was cancelled, is ignored.
  void CancelTimer(TimerId id);

  // Returns after Stop, also if Stop came first. A loop does not run again.
  void Run();

  // One pass that does not sleep; returns the work done. For tests, and owners with another loop.
  int RunOnce();

  // Ends Run after the present pass. Any thread, any number of times.
  void Stop();

  // The loop makes at least one full pass after this call. Any thread; cheap when the loop is
  // awake.
  void Wake();

  const Clock& clock() const { return *clock_; }
  // The longest time that the loop spins. 0: it never does.
  int64_t spin_ns_max() const { return idle_policy_.spin_ns_max(); }

  ~EventLoop() = default;
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

 private:
  struct Watch {
    int fd;
    std::function<void(uint32_t)> on_events;
  };
  struct Timer {
    TimerId id;
    int64_t period_ns;  // 0: once.
    std::function<void()> on_time;
  };

  EventLoop(const Clock* clock, int64_t spin_ns_max, Descriptor epoll, Descriptor wake);
  int RunPollers();
  int RunTimers();
  // Waits until a descriptor is ready, at most `timeout_ns`. -1: for ever.
  int ServeDescriptors(int64_t timeout_ns);
  // Returns the work done.
  int Sleep();
  int64_t SleepLimitNs() const;

  const Clock* const clock_;
  Descriptor epoll_;
  Descriptor wake_;  // eventfd; readable when a thread woke the sleeping loop.

  std::vector<Poller*> pollers_;  // A null is a poller that was removed during a pass.
  bool in_pass_ = false;
  // Keyed by the number of the registration, because descriptors are used again.
  std::unordered_map<uint64_t, std::shared_ptr<Watch>> watches_;
  std::unordered_map<int, uint64_t> watch_of_fd_;
  uint64_t next_watch_ = 1;
  std::map<std::pair<int64_t, TimerId>, Timer> timers_;  // By deadline.
  std::unordered_map<TimerId, int64_t> timer_deadlines_;
  TimerId next_timer_ = 1;

  IdlePolicy idle_policy_;
  int64_t served_at_ns_ = 0;  // When descriptors were last looked at.
  std::atomic<bool> stopped_{false};
  std::atomic<bool> woken_{false};
  std::atomic<bool> asleep_{false};
};

}  // namespace talweg::runtime

#endif  // TALWEG_LIBS_RUNTIME_EVENT_LOOP_H_
