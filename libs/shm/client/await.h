// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_AWAIT_H_
#define TALWEG_LIBS_SHM_CLIENT_AWAIT_H_

// How a rank's threads wait (docs/shared_memory.md, "Waiting"): the template half of Client.

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#include "libs/shm/client/client.h"

namespace talweg::shm {

// A rank that runs comes sooner than the agent can be woken, and wake.
inline constexpr int64_t kYieldForRanksNs = 50'000;

inline void SpinPause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Sleeps while *word is `expected`, until the deadline, a wake or a signal.
inline void FutexWait(std::atomic<uint32_t>& word, uint32_t expected, const Deadline& deadline) {
  const timespec left = deadline.never() ? timespec{} : ToTimespec(deadline.LeftNs(MonotonicNs()));
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, deadline.never() ? nullptr : &left,
            nullptr, 0);
}

inline void Client::WakeFollowers() {
  reads_.fetch_add(1, std::memory_order_seq_cst);
  // A thread that registers after this looks at reads_ after it, too, and does not sleep.
  if (followers_.load(std::memory_order_seq_cst) == 0) return;
  ::syscall(SYS_futex, &reads_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

inline void Client::StopReading() {
  // Sequentially consistent, as who finds it taken: one of the two sees the other.
  reading_.store(false, std::memory_order_seq_cst);
  WakeFollowers();  // One of them reads on if this thread is done.
  if (unread_.load(std::memory_order_seq_cst) &&
      unread_.exchange(false, std::memory_order_seq_cst)) {
    SignalAll();
  }
}

inline void Client::Enter(const WaitingPlace& place) {
  if (!place.tensor) {
    place.sleepers.fetch_add(1, std::memory_order_seq_cst);
    return;
  }
  // One at a time: two must not both take themselves for the only one.
  const MutexLock lock(state_mutex_);
  const bool is_only = place.sleepers.load(std::memory_order_seq_cst) == 0;
  link_.control().rank_line().awaited_bytes.store(place.awaited_bytes, std::memory_order_seq_cst);
  link_.control().rank_line().awaited.store(is_only ? *place.tensor + 1 : 0,
                                            std::memory_order_seq_cst);
  place.sleepers.fetch_add(1, std::memory_order_seq_cst);
}

inline void Client::RingToAwait(const WaitingPlace& place) {
  // What comes by the socket needs no push.
  if (&place.sleepers != &uncounted_) bell_.Ring(AgentBell::Sleeping::kUntilAwaited);
}

template <typename Done>
Client::Awaited Client::Look(const Done& done, RankStatus* status) const {
  if (done()) return Awaited::kDone;
  if (status == nullptr || !health_.Over(status)) return Awaited::kTimeout;  // Not yet.
  // It may have been done before it was over.
  return done() ? Awaited::kDone : Awaited::kOver;
}

template <typename Done>
bool Client::Spin(const Done& done, const Deadline& deadline, const WaitingPlace& place) const {
  const int64_t begin_ns = MonotonicNs();
  int64_t now_ns = begin_ns;
  for (; now_ns - begin_ns < spin_ns_ && !deadline.Passed(now_ns); now_ns = MonotonicNs()) {
    for (int i = 0; i < 16; ++i) {
      if (done()) return true;
      SpinPause();
    }
  }
  if (place.needs_agent || spin_ns_ == 0) return false;
  // With more ranks than CPUs the one that is waited for may only need this one.
  for (; now_ns - begin_ns < kYieldForRanksNs && !deadline.Passed(now_ns); now_ns = MonotonicNs()) {
    ::sched_yield();
    if (done()) return true;
  }
  return false;
}

template <typename Done>
Client::Awaited Client::Await(const Done& done, const Deadline& deadline, const WaitingPlace& place,
                              RankStatus* status) {
  Awaited seen = Look(done, status);
  if (seen != Awaited::kTimeout) return seen;
  if (place.needs_agent) RingToAwait(place);  // So that it runs while this thread spins.
  if (Spin(done, deadline, place)) return Awaited::kDone;
  if (deadline.Passed(MonotonicNs())) {
    // Who never waits must still learn that the agent is gone, and be told what only it knows.
    if (!place.needs_agent) bell_.RingForPoll(false);
    ReadSocket(kLookEveryNs);
    return Look(done, status);
  }
  Enter(place);
  // Sequentially consistent, like the count: an agent that has gone to sleep meanwhile has seen the
  // count, or is seen.
  RingToAwait(place);
  statistics_.waits_slept.fetch_add(1, std::memory_order_relaxed);
  seen = Sleep(done, deadline, status);
  place.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return seen;
}

template <typename Done>
Client::Awaited Client::Sleep(const Done& done, const Deadline& deadline, RankStatus* status) {
  for (;;) {
    const uint32_t reads = reads_.load(std::memory_order_seq_cst);
    Awaited seen = Look(done, status);
    if (seen != Awaited::kTimeout || deadline.Passed(MonotonicNs())) return seen;
    if (!reading_.exchange(true, std::memory_order_seq_cst)) {
      LookAtAgent();
      // Look again: the reader before this one may have read the Wake that was meant for us.
      seen = Look(done, status);
      if (seen == Awaited::kTimeout) {
        link_.socket().WaitReadable(
            health_.watches_agent()
                ? Deadline::Earlier(deadline, Deadline(AgentWatch::kLookEveryNs))
                : deadline);
        LookAtAgent();
      }
      StopReading();
      continue;
    }
    followers_.fetch_add(1, std::memory_order_seq_cst);
    FutexWait(reads_, reads, deadline);
    followers_.fetch_sub(1, std::memory_order_seq_cst);
  }
}

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_AWAIT_H_
