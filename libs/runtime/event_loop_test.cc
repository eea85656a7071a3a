// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/runtime/host_id.h"
#include "libs/runtime/mailbox.h"
#include "libs/runtime/manual_clock.h"
#include "libs/runtime/shutdown_signal.h"

namespace talweg::runtime {
namespace {

constexpr int64_t kMs = 1'000'000;

std::unique_ptr<EventLoop> NewLoop(const Clock* clock, int64_t spin_ns_max = -1) {
  auto loop = EventLoop::Create(clock, {.spin_ns_max = spin_ns_max});
  REQUIRE(loop.ok());
  return *std::move(loop);
}

Descriptor NewEvent() { return Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }

void Signal(const Descriptor& event) {
  const uint64_t one = 1;
  REQUIRE(write(event.get(), &one, sizeof(one)) == sizeof(one));
}

int64_t ThreadCpuNs() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<int64_t>(used.tv_sec) * 1'000'000'000 + used.tv_nsec;
}

// Returns whether epoll_pwait2 exists (Linux 5.11) and no filter of system calls forbids it.
bool HasShortSleeps() {
  const Descriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  epoll_event none;
  const timespec at_once = {};
  return epoll_pwait2(epoll.get(), &none, 1, &at_once, nullptr) == 0;
}

class CountingPoller final : public Poller {
 public:
  int Poll() override {
    ++polls;
    return on_poll ? on_poll() : 0;
  }
  bool PrepareToSleep() override {
    ++preparations;
    return may_sleep;
  }

  int polls = 0;
  int preparations = 0;
  bool may_sleep = true;
  std::function<int()> on_poll;
};

TEST_CASE("EventLoop: timers run in the order of their deadlines, and not before", "[runtime]") {
  ManualClock clock(1000);
  const auto loop = NewLoop(&clock);
  std::vector<int> order;
  loop->AddTimer(1030, [&] { order.push_back(3); });
  loop->AddTimer(1010, [&] { order.push_back(1); });
  loop->AddTimer(1010, [&] { order.push_back(2); });
  const auto cancelled = loop->AddTimer(1010, [&] { order.push_back(9); });
  loop->CancelTimer(cancelled);
  loop->CancelTimer(cancelled);
  CHECK(loop->RunOnce() == 0);
  clock.Advance(10);
  loop->RunOnce();
  CHECK(order == std::vector{1, 2});
  clock.Advance(19);
  loop->RunOnce();
  CHECK(order.size() == 2);
  clock.Advance(1);
  loop->RunOnce();
  CHECK(order == std::vector{1, 2, 3});
}

TEST_CASE("EventLoop: periodic timers keep their beat and skip what they missed", "[runtime]") {
  ManualClock clock;
  const auto loop = NewLoop(&clock);
  int runs = 0;
  EventLoop::TimerId id = 0;
  id = loop->AddPeriodicTimer(10, [&] {
    if (++runs == 4) loop->CancelTimer(id);
  });
  loop->RunOnce();
  CHECK(runs == 0);
  clock.Advance(10);
  loop->RunOnce();
  loop->RunOnce();
  CHECK(runs == 1);
  clock.Advance(35);  // It was due at 20, 30 and 40, and runs once.
  loop->RunOnce();
  loop->RunOnce();
  CHECK(runs == 2);
  clock.Advance(5);  // At 50 it is on the beat.
  loop->RunOnce();
  CHECK(runs == 3);
  clock.Advance(10);
  loop->RunOnce();
  clock.Advance(100);
  loop->RunOnce();
  CHECK(runs == 4);
}

TEST_CASE("EventLoop: a timer that adds itself for now runs in the next pass", "[runtime]") {
  ManualClock clock(5);
  const auto loop = NewLoop(&clock);
  int runs = 0;
  std::function<void()> again = [&] {
    ++runs;
    loop->AddTimer(0, again);
  };
  loop->AddTimer(0, again);
  loop->RunOnce();
  CHECK(runs == 1);
  loop->RunOnce();
  CHECK(runs == 2);
}

TEST_CASE("EventLoop: descriptors are served until they are removed", "[runtime]") {
  ManualClock clock;
  const auto loop = NewLoop(&clock);
  const Descriptor first = NewEvent();
  const Descriptor second = NewEvent();
  int served = 0;
  // Each removes the other. Whichever comes first, the second one must not be served any more.
  const auto serve = [&](const Descriptor& other) {
    return [&](uint32_t events) {
      CHECK((events & EPOLLIN) != 0);
      ++served;
      loop->RemoveDescriptor(other.get());
    };
  };
  REQUIRE(loop->AddDescriptor(first.get(), EPOLLIN, serve(second)).ok());
  REQUIRE(loop->AddDescriptor(second.get(), EPOLLIN, serve(first)).ok());
  CHECK(absl::IsAlreadyExists(loop->AddDescriptor(first.get(), EPOLLIN, serve(second))));
  CHECK(loop->RunOnce() == 0);
  Signal(first);
  Signal(second);
  loop->RunOnce();
  CHECK(served == 1);
  loop->RunOnce();
  CHECK(served == 2);  // Events are level-triggered, so the remaining one is served now.
}

TEST_CASE("EventLoop: a callback may replace its own descriptor by one of the same number",
          "[runtime]") {
  ManualClock clock;
  const auto loop = NewLoop(&clock);
  Descriptor descriptor = NewEvent();
  int old_served = 0;
  int new_served = 0;
  REQUIRE(loop->AddDescriptor(descriptor.get(), EPOLLIN,
                              [&](uint32_t) {
                                ++old_served;
                                loop->RemoveDescriptor(descriptor.get());
                                descriptor.Reset();
                                descriptor = NewEvent();
                                REQUIRE(loop->AddDescriptor(descriptor.get(), EPOLLIN,
                                                            [&](uint32_t) { ++new_served; })
                                            .ok());
                              })
              .ok());
  Signal(descriptor);
  loop->RunOnce();
  loop->RunOnce();
  CHECK(old_served == 1);
  CHECK(new_served == 0);
  Signal(descriptor);
  loop->RunOnce();
  CHECK(new_served == 1);
}

TEST_CASE("EventLoop: a poller may remove itself, and its neighbour", "[runtime]") {
  ManualClock clock;
  const auto loop = NewLoop(&clock);
  CountingPoller first;
  CountingPoller second;
  first.on_poll = [&] {
    loop->RemovePoller(&first);
    loop->RemovePoller(&second);
    return 1;
  };
  loop->AddPoller(&first);
  loop->AddPoller(&second);
  loop->RunOnce();
  loop->RunOnce();
  CHECK(first.polls == 1);
  CHECK(second.polls == 0);
}

TEST_CASE("EventLoop: it does not sleep while a poller says that it has work", "[runtime]") {
  MonotonicClock clock;
  const auto loop = NewLoop(&clock, 0);
  CountingPoller poller;
  poller.may_sleep = false;
  poller.on_poll = [&] {
    if (poller.polls == 1000) loop->Stop();
    return 0;
  };
  loop->AddPoller(&poller);
  loop->Run();  // It returns, because each pass polls again.
  CHECK(poller.polls >= 1000);
  CHECK(poller.preparations > 0);
}

TEST_CASE("EventLoop: an idle loop sleeps instead of spinning", "[runtime]") {
  MonotonicClock clock;
  const auto loop = NewLoop(&clock);
  CountingPoller poller;
  loop->AddPoller(&poller);
  loop->AddTimer(clock.NowNs() + 200 * kMs, [&] { loop->Stop(); });
  const int64_t cpu_before_ns = ThreadCpuNs();
  loop->Run();
  // Spinning for a fifth of a second would take 200 ms of CPU time on any machine.
  CHECK(ThreadCpuNs() - cpu_before_ns < 50 * kMs);
  CHECK(poller.preparations >= 1);
}

TEST_CASE("EventLoop: a loop that soon has work again spins instead of sleeping", "[runtime]") {
  MonotonicClock clock;
  const auto loop = NewLoop(&clock, 200'000);
  const int64_t end_ns = clock.NowNs() + 20'000 * kMs;
  CountingPoller poller;
  int64_t next_ns = 0;
  int preparations = 0;
  int without_sleep = 0;  // How often there has been work since the loop last slept.
  poller.on_poll = [&] {
    const int64_t now_ns = clock.NowNs();
    if (now_ns < next_ns) return 0;
    next_ns = now_ns + 50'000;
    without_sleep = poller.preparations == preparations ? without_sleep + 1 : 0;
    preparations = poller.preparations;
    if (without_sleep >= 20 || now_ns > end_ns) loop->Stop();
    return 1;
  };
  loop->AddPoller(&poller);
  // A sleep ends when there is work again.
  loop->AddPeriodicTimer(50'000, [] {});
  loop->Run();
  CHECK(without_sleep >= 20);
}

TEST_CASE("EventLoop: a sleep may be shorter than a millisecond", "[runtime]") {
  MonotonicClock clock;
  const auto loop = NewLoop(&clock, 0);
  constexpr int64_t kSleepNs = 100'000;
  int64_t begin_ns = 0;
  int64_t shortest_ns = INT64_MAX;
  int sleeps = 0;
  // On a busy machine most sleeps are longer. One that is not is enough.
  std::function<void()> sleep_again = [&] {
    if (begin_ns != 0) shortest_ns = std::min(shortest_ns, clock.NowNs() - begin_ns);
    if (shortest_ns < kMs || ++sleeps > 3'000) return loop->Stop();
    begin_ns = clock.NowNs();
    loop->AddTimer(begin_ns + kSleepNs, sleep_again);
  };
  sleep_again();
  loop->Run();
  if (shortest_ns >= kMs && !HasShortSleeps()) {
    WARN("SKIPPED: this kernel has no epoll_pwait2");
    return;
  }
  CHECK(shortest_ns >= kSleepNs);
  CHECK(shortest_ns < kMs);
}

TEST_CASE("EventLoop: Stop works before Run, and from another thread", "[runtime]") {
  MonotonicClock clock;
  {
    const auto loop = NewLoop(&clock);
    loop->Stop();
    loop->Run();
  }
  const auto loop = NewLoop(&clock, 0);
  std::thread stopper([&] { loop->Stop(); });
  loop->Run();
  stopper.join();
}

// Two loops send a number back and forth. A lost wake-up leaves both asleep for ever, and the
// watchdog timers notice that.
TEST_CASE("Mailbox: no message is lost when a loop goes to sleep", "[runtime]") {
  MonotonicClock clock;
  const int64_t spin_ns = GENERATE(0, 20'000);
  const auto left = NewLoop(&clock, spin_ns);
  const auto right = NewLoop(&clock, spin_ns);
  Mailbox<int> to_left(left.get());
  Mailbox<int> to_right(right.get());
  constexpr int kRounds = 3000;
  bool timed_out = false;

  CountingPoller left_poller;
  left_poller.on_poll = [&] {
    return to_left.Drain([&](int number) {
      if (number < kRounds) {
        to_right.Post(number + 1);
      } else {
        left->Stop();
        right->Stop();
      }
    });
  };
  CountingPoller right_poller;
  right_poller.on_poll = [&] {
    return to_right.Drain([&](int number) { to_left.Post(number + 1); });
  };
  left->AddPoller(&left_poller);
  right->AddPoller(&right_poller);
  left->AddTimer(clock.NowNs() + 60'000 * kMs, [&] {
    timed_out = true;
    left->Stop();
    right->Stop();
  });
  std::thread other([&] { right->Run(); });
  to_left.Post(0);
  left->Run();
  other.join();
  CHECK_FALSE(timed_out);
}

TEST_CASE("Mailbox: messages of one thread stay in order, and none is lost", "[runtime]") {
  MonotonicClock clock;
  const auto loop = NewLoop(&clock, 0);
  Mailbox<std::pair<int, int>> mailbox(loop.get());
  constexpr int kThreads = 3;
  constexpr int kMessages = 5000;
  std::vector<int> next(kThreads, 0);
  int received = 0;
  bool in_order = true;
  CountingPoller poller;
  poller.on_poll = [&] {
    return mailbox.Drain([&](std::pair<int, int> message) {
      in_order = in_order && next[message.first]++ == message.second;
      if (++received == kThreads * kMessages) loop->Stop();
    });
  };
  loop->AddPoller(&poller);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kMessages; ++i) mailbox.Post({thread, i});
    });
  }
  loop->Run();
  for (std::thread& thread : threads) thread.join();
  CHECK(in_order);
  CHECK(mailbox.size() == 0);
}

TEST_CASE("Mailbox: a message posted while draining is drained next time", "[runtime]") {
  Mailbox<int> mailbox(nullptr);
  mailbox.Post(1);
  std::vector<int> seen;
  const auto on_message = [&](int message) {
    seen.push_back(message);
    if (message < 3) mailbox.Post(message + 1);
  };
  CHECK(mailbox.Drain(on_message) == 1);
  CHECK(mailbox.size() == 1);
  CHECK(mailbox.Drain(on_message) == 1);
  CHECK(mailbox.Drain(on_message) == 1);
  CHECK(mailbox.Drain(on_message) == 0);
  CHECK(seen == std::vector{1, 2, 3});
}

TEST_CASE("ShutdownSignal: each signal arrives as an event", "[runtime]") {
  MonotonicClock clock;
  const auto loop = NewLoop(&clock, 0);
  auto signals = ShutdownSignal::Create();
  REQUIRE(signals.ok());
  std::vector<int> seen;
  std::vector<std::string> hangups;
  const auto on_signal = [&](int signal_number) {
    seen.push_back(signal_number);
    if (seen.size() == 1) raise(SIGINT);
    if (seen.size() == 2) loop->Stop();
  };
  const auto on_hangup = [&](const std::string& text) {
    hangups.push_back(text);
    raise(SIGTERM);
  };
  REQUIRE((*signals)->Watch(loop.get(), on_signal, on_hangup).ok());
  raise(SIGHUP);  // It ends nothing.
  loop->Run();
  CHECK(seen == std::vector{SIGTERM, SIGINT});
  REQUIRE(hangups.size() == 1);
  CHECK(hangups[0].find("SIGTERM ends this daemon") != std::string::npos);
  (*signals)->Unwatch(loop.get());
}

TEST_CASE("ShutdownSignal: a signal that comes too late to be an event ends nothing", "[runtime]") {
  auto signals = ShutdownSignal::Create();
  REQUIRE(signals.ok());
  raise(SIGTERM);
  raise(SIGINT);
  signals->reset();
  // Static objects are destroyed now, and files are closed. A daemon that has obeyed keeps its exit
  // status.
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) raise(number);
  REQUIRE(ShutdownSignal::Create().ok());  // Forgets the signals, for the tests that follow.
}

TEST_CASE("HostId: it is the same for every process here, and never empty on Linux", "[runtime]") {
  CHECK_FALSE(HostId().empty());
  CHECK(HostId() == HostId());
  CHECK(HostId().find('/') != std::string::npos);
}

}  // namespace
}  // namespace talweg::runtime
