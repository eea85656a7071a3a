// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/watches.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "libs/shm/client/deadline.h"

namespace talweg::shm {
namespace {

constexpr size_t kFirstCapacity = 16;

bool AddTo(int epoll, int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

Watches::~Watches() { std::free(static_cast<void*>(watches_)); }

RankStatus Watches::Open(int socket, int64_t tick_ns, ErrorText& error) {
  if (is_open()) return RankStatus::kOk;
  Descriptor epoll(::epoll_create1(EPOLL_CLOEXEC));
  Descriptor event(epoll.valid() ? ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1);
  Descriptor timer(event.valid() ? ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)
                                 : -1);
  // Edge-triggered: another thread may be about to read what the socket holds, so only new input
  // counts.
  if (!timer.valid() || !AddTo(epoll.get(), socket, EPOLLIN | EPOLLRDHUP | EPOLLET) ||
      !AddTo(epoll.get(), event.get(), EPOLLIN) || !AddTo(epoll.get(), timer.get(), EPOLLIN)) {
    return error.Fail(RankStatus::kLimit,
                      "no descriptor that tells of completed rounds: %s; raise ulimit -n",
                      std::strerror(errno));
  }
  epoll_ = std::move(epoll);
  event_ = std::move(event);
  timer_ = std::move(timer);
  tick_ns_ = tick_ns;
  is_open_.store(true, std::memory_order_release);
  return RankStatus::kOk;
}

void Watches::Signal() const {
  if (!is_open()) return;
  const uint64_t one = 1;
  // The write fails if the counter is full; the descriptor is readable then.
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof(one));
}

void Watches::Drain() {
  epoll_event events[3];
  int count = 0;
  do {
    count = ::epoll_wait(epoll_.get(), events, 3, 0);
  } while (count < 0 && errno == EINTR);
  for (int i = 0; i < count; ++i) {
    const int fd = events[i].data.fd;
    if (fd != event_.get() && fd != timer_.get()) continue;
    uint64_t times = 0;
    // Another thread may have read it already.
    const bool read = ::read(fd, &times, sizeof(times)) == sizeof(times);
    if (read && fd == timer_.get()) ticked_.store(true, std::memory_order_relaxed);
  }
}

bool Watches::Add(const Watch& watch) {
  if (count_ == capacity_) {
    const size_t capacity = capacity_ == 0 ? kFirstCapacity : 2 * capacity_;
    void* const grown = std::realloc(static_cast<void*>(watches_), capacity * sizeof(Watch));
    if (grown == nullptr) return false;
    watches_ = static_cast<Watch*>(grown);
    capacity_ = capacity;
  }
  watches_[count_++] = watch;
  if (!ticks_ && tick_ns_ > 0) {
    ticks_ = true;
    SetTimer(tick_ns_);
  }
  return true;
}

void Watches::SetTimer(int64_t every_ns) const {
  itimerspec times{};
  times.it_value = times.it_interval = ToTimespec(every_ns);
  ::timerfd_settime(timer_.get(), 0, &times, nullptr);
}

void Watches::Rest() {
  if (!ticks_ || !ticked_.exchange(false, std::memory_order_relaxed)) return;
  ticks_ = false;
  SetTimer(0);
}

}  // namespace talweg::shm
