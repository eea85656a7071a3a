// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/event_loop.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "libs/base/check.h"
#include "libs/runtime/cpu_quota.h"

namespace talweg::runtime {
namespace {

constexpr uint64_t kWakeWatch = 0;
// A busy loop looks at its descriptors this often. What they bring is not urgent by the
// microsecond.
constexpr int64_t kServeEveryNs = 50'000;
constexpr int64_t kSleepNsMax = 60'000'000'000;

// A small round over a network lets its agents and aggregators wait for less than this.
constexpr int64_t kSpinNsMax = 200'000;

// A control group's quota counts what a spinning thread uses, also where nobody else wants it.
int64_t DefaultSpinNsMax() {
  const std::optional<double> quota = CpuQuota();
  return quota && *quota < std::thread::hardware_concurrency() ? 0 : kSpinNsMax;
}

absl::Status SystemError(int error_number, const std::string& what) {
  const std::string text = what + ": " + strerror(error_number);
  switch (error_number) {
    case EMFILE:
    case ENFILE:
      return absl::ResourceExhaustedError(text + "; raise the descriptor limit (ulimit -n)");
    case ENOMEM:
    case ENOSPC: return absl::ResourceExhaustedError(text);
    case EEXIST: return absl::AlreadyExistsError(text);
    case ENOENT: return absl::NotFoundError(text);
    default: return absl::InvalidArgumentError(text);
  }
}

// epoll_wait, to the nanosecond where the kernel can (5.11), else to the millisecond above.
int WaitFor(const Descriptor& epoll, std::span<epoll_event> ready, int64_t timeout_ns) {
  const int count_max = static_cast<int>(ready.size());
  if (timeout_ns > 0) {
    const timespec timeout = {.tv_sec = timeout_ns / 1'000'000'000,
                              .tv_nsec = timeout_ns % 1'000'000'000};
    const int count = epoll_pwait2(epoll.get(), ready.data(), count_max, &timeout, nullptr);
    // EPERM: a container's filter of system calls does not know this one.
    if (count >= 0 || (errno != ENOSYS && errno != EPERM)) return count;
  }
  const int64_t timeout_ms = timeout_ns < 0 ? -1 : (timeout_ns + 999'999) / 1'000'000;
  return epoll_wait(epoll.get(), ready.data(), count_max, static_cast<int>(timeout_ms));
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventLoop>> EventLoop::Create(const Clock* clock, Options options) {
  Descriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return SystemError(errno, "epoll_create1 for an event loop");
  Descriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return SystemError(errno, "eventfd for an event loop");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeWatch;
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return SystemError(errno, "epoll_ctl for an event loop");
  }
  const int64_t spin_ns_max = options.spin_ns_max < 0 ? DefaultSpinNsMax() : options.spin_ns_max;
  return std::unique_ptr<EventLoop>(
      new EventLoop(clock, spin_ns_max, std::move(epoll), std::move(wake)));
}

EventLoop::EventLoop(const Clock* clock, int64_t spin_ns_max, Descriptor epoll, Descriptor wake)
    : clock_(clock), epoll_(std::move(epoll)), wake_(std::move(wake)), idle_policy_(spin_ns_max) {}

absl::Status EventLoop::AddDescriptor(int fd, uint32_t events,
                                      std::function<void(uint32_t)> on_events) {
  if (watch_of_fd_.contains(fd)) {
    return absl::AlreadyExistsError("descriptor " + std::to_string(fd) + " is being watched");
  }
  const uint64_t id = next_watch_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return SystemError(errno, "watch descriptor " + std::to_string(fd));
  }
  watches_.emplace(id, std::make_shared<Watch>(Watch{fd, std::move(on_events)}));
  watch_of_fd_.emplace(fd, id);
  return absl::OkStatus();
}

absl::Status EventLoop::ChangeDescriptor(int fd, uint32_t events) {
  const auto found = watch_of_fd_.find(fd);
  if (found == watch_of_fd_.end()) {
    return absl::NotFoundError("descriptor " + std::to_string(fd) + " is not being watched");
  }
  epoll_event event{};
  event.events = events;
  event.data.u64 = found->second;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0) {
    return SystemError(errno, "watch descriptor " + std::to_string(fd));
  }
  return absl::OkStatus();
}

void EventLoop::RemoveDescriptor(int fd) {
  const auto found = watch_of_fd_.find(fd);
  if (found == watch_of_fd_.end()) return;
  // Fails if the caller has closed it already; then there is nothing left to remove.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  watches_.erase(found->second);
  watch_of_fd_.erase(found);
}

void EventLoop::AddPoller(Poller* poller) { pollers_.push_back(poller); }

void EventLoop::RemovePoller(Poller* poller) {
  if (in_pass_) {
    std::replace(pollers_.begin(), pollers_.end(), poller, static_cast<Poller*>(nullptr));
  } else {
    std::erase(pollers_, poller);
  }
}

EventLoop::TimerId EventLoop::AddTimer(int64_t deadline_ns, std::function<void()> on_time) {
  const TimerId id = next_timer_++;
  timers_.emplace(std::pair(deadline_ns, id), Timer{id, 0, std::move(on_time)});
  timer_deadlines_.emplace(id, deadline_ns);
  return id;
}

EventLoop::TimerId EventLoop::AddPeriodicTimer(int64_t period_ns, std::function<void()> on_time) {
  TALWEG_CHECK(period_ns > 0);
  const TimerId id = next_timer_++;
  const int64_t deadline_ns = clock_->NowNs() + period_ns;
  timers_.emplace(std::pair(deadline_ns, id), Timer{id, period_ns, std::move(on_time)});
  timer_deadlines_.emplace(id, deadline_ns);
  return id;
}

void EventLoop::CancelTimer(TimerId id) {
  const auto found = timer_deadlines_.find(id);
  if (found == timer_deadlines_.end()) return;
  timers_.erase(std::pair(found->second, id));
  timer_deadlines_.erase(found);
}

void EventLoop::Run() {
  while (!stopped_.load(std::memory_order_acquire)) {
    const int64_t begin_ns = clock_->NowNs();
    int work = RunPollers() + RunTimers();
    if (begin_ns - served_at_ns_ >= kServeEveryNs) work += ServeDescriptors(0);
    if (woken_.exchange(false)) ++work;
    if (work > 0) {
      idle_policy_.Worked(begin_ns, clock_->NowNs());
    } else if (idle_policy_.Idle(begin_ns) == IdlePolicy::Wait::kSpin) {
      ::sched_yield();
    } else if (Sleep() > 0) {
      idle_policy_.Worked(served_at_ns_, clock_->NowNs());
    }
  }
}

int EventLoop::RunOnce() {
  woken_.store(false);
  const int work = RunPollers() + RunTimers();
  return work + ServeDescriptors(0);
}

void EventLoop::Stop() {
  stopped_.store(true, std::memory_order_release);
  Wake();
}

void EventLoop::Wake() {
  woken_.store(true);
  // Sequentially consistent with Sleep: either we see asleep_, or Sleep sees woken_.
  if (asleep_.load()) {
    const uint64_t one = 1;
    // The write fails only if the counter is full, and then the loop wakes anyway.
    [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  }
}

int EventLoop::RunPollers() {
  int work = 0;
  in_pass_ = true;
  // By index: a poller may add another, which may move the vector.
  for (size_t i = 0; i < pollers_.size(); ++i) {
    if (pollers_[i] != nullptr) work += pollers_[i]->Poll();
  }
  in_pass_ = false;
  std::erase(pollers_, nullptr);
  return work;
}

int EventLoop::RunTimers() {
  if (timers_.empty()) return 0;
  const int64_t now_ns = clock_->NowNs();
  // Runs only the timers that are here now. One that adds itself again for now runs in the next
  // pass.
  const TimerId added_during_pass = next_timer_;
  int work = 0;
  for (auto it = timers_.begin(); it != timers_.end() && it->first.first <= now_ns;) {
    if (it->first.second >= added_during_pass) {
      ++it;
      continue;
    }
    auto node = timers_.extract(it);
    Timer& timer = node.mapped();
    const std::function<void()> on_time = timer.on_time;
    if (timer.period_ns > 0) {
      const int64_t missed = (now_ns - node.key().first) / timer.period_ns;
      node.key().first += (missed + 1) * timer.period_ns;
      timer_deadlines_[timer.id] = node.key().first;
      timers_.insert(std::move(node));
    } else {
      timer_deadlines_.erase(timer.id);
    }
    on_time();
    ++work;
    it = timers_.begin();  // The callback may have changed anything.
  }
  return work;
}

int EventLoop::ServeDescriptors(int64_t timeout_ns) {
  std::array<epoll_event, 64> ready;
  const int count = WaitFor(epoll_, ready, timeout_ns);
  served_at_ns_ = clock_->NowNs();
  int work = 0;
  for (int i = 0; i < count; ++i) {
    const uint64_t id = ready[i].data.u64;
    if (id == kWakeWatch) {
      uint64_t ignored;
      [[maybe_unused]] const ssize_t got = read(wake_.get(), &ignored, sizeof(ignored));
      continue;
    }
    const auto found = watches_.find(id);
    if (found == watches_.end()) continue;  // Removed by a callback before this one.
    const std::shared_ptr<Watch> watch = found->second;
    watch->on_events(ready[i].events);
    ++work;
  }
  return work;
}

int EventLoop::Sleep() {
  asleep_.store(true);
  bool ready = !woken_.load() && !stopped_.load();
  for (Poller* poller : pollers_) {
    if (ready) ready = poller->PrepareToSleep();
  }
  const int work = ServeDescriptors(ready ? SleepLimitNs() : 0);
  asleep_.store(false);
  return work;
}

int64_t EventLoop::SleepLimitNs() const {
  if (timers_.empty()) return -1;
  return std::clamp<int64_t>(timers_.begin()->first.first - clock_->NowNs(), 0, kSleepNsMax);
}

}  // namespace talweg::runtime
