// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_WAITING_H_
#define TALWEG_LIBS_SHM_CLIENT_WAITING_H_

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <optional>

#include "libs/shm/client/agent_bell.h"
#include "libs/shm/client/agent_link.h"
#include "libs/shm/client/agent_watch.h"
#include "libs/shm/client/client_health.h"
#include "libs/shm/client/client_statistics.h"
#include "libs/shm/client/deadline.h"
#include "libs/shm/client/inbox.h"
#include "libs/shm/client/lock.h"
#include "libs/shm/client/watchers.h"
#include "libs/shm/layout/rank_status.h"

namespace talweg::shm {

// Where the agent sees that it must wake a thread: counted in `sleepers` (Waiting::uncounted() for
// what comes by the socket anyway), and, if it waits for a tensor, in `awaited` if it is the only
// one.
struct WaitingPlace {
  std::atomic<uint32_t>& sleepers;
  std::optional<uint32_t> tensor = std::nullopt;
  uint64_t awaited_bytes = 0;  // Its result's, before it is complete.
  bool needs_agent = true;     // Else ranks that run may be all it takes.
};

// How a wait has ended: what was waited for is there; nothing can go on any more; not yet.
enum class Awaited { kDone, kOver, kTimeout };

// How a rank's threads wait, and who reads the socket meanwhile (docs/shared_memory.md, "Waiting").
// Any thread may call anything. At most one at a time is the reader: it reads the socket, asleep on
// it if need be, hands out what has come, and looks whether the agent still runs. Others that sleep
// do so until the reader stops; then each looks for itself, and one of them reads on.
class Waiting {
 public:
  Waiting(AgentLink& link, ClientHealth& health, AgentBell& bell, Inbox& inbox, Watchers& watchers,
          ClientStatistics& statistics, Mutex& state_mutex)
      : link_(link),
        health_(health),
        bell_(bell),
        inbox_(inbox),
        watchers_(watchers),
        statistics_(statistics),
        state_mutex_(state_mutex) {}

  // Before anything is waited for. Negative: by the number of CPUs.
  void Begin(int64_t spin_ns);

  // Waits until done(), or nothing can go on, or the deadline. With a null `status` only done() and
  // the deadline count.
  template <typename Done>
  Awaited Await(const Done& done, const Deadline& deadline, const WaitingPlace& place,
                RankStatus* status);
  // kTimeout: not yet.
  template <typename Done>
  Awaited Look(const Done& done, RankStatus* status) const;

  // Where those are counted that the agent need not know of.
  std::atomic<uint32_t>& uncounted() { return uncounted_; }
  // Counts a thread at its place.
  void Enter(const WaitingPlace& place);
  // Ends a sleep of the agent that lasts until somebody waits.
  void RingToAwait(const WaitingPlace& place);

  // Reads the socket without waiting, unless another thread is at it. At most every `every_ns`.
  void ReadSocket(int64_t every_ns);
  // Reads the socket, unless another thread is at it: then the client's descriptors become readable
  // when that one stops. `own`: the caller looks at these itself.
  void ReadSocketOrBeTold(const Watches* own);
  // Threads that sleep look again.
  void WakeFollowers();

 private:
  // Until the place's spinning is over, or done().
  template <typename Done>
  bool Spin(const Done& done, const Deadline& deadline, const WaitingPlace& place) const;
  template <typename Done>
  Awaited Sleep(const Done& done, const Deadline& deadline, RankStatus* status);
  // Until the next change of reads_ from `reads`.
  void SleepAsFollower(uint32_t reads, const Deadline& deadline);

  // The reader's: handles what the socket holds, looks whether the agent runs; and tells those that
  // poll a descriptor what has come of it.
  void LookAtAgent();
  void ReadAgent();
  // The thread is the reader no more.
  void StopReading();

  AgentLink& link_;
  ClientHealth& health_;
  AgentBell& bell_;
  Inbox& inbox_;
  Watchers& watchers_;
  ClientStatistics& statistics_;
  Mutex& state_mutex_;
  int64_t spin_ns_ = 0;
  std::atomic<bool> reading_{false};  // There is a reader.
  std::atomic<uint32_t> reads_{0};    // Moved on by a reader that stops.
  std::atomic<uint32_t> followers_{0};
  std::atomic<int64_t> looked_ns_{0};  // When ReadSocket last did.
  // A thread that wanted to read the socket has found another at it.
  std::atomic<bool> unread_{false};
  std::atomic<uint32_t> uncounted_{0};
};

// A rank that runs comes sooner than the agent can be woken, and wake.
inline constexpr int64_t kYieldForRanksNs = 50'000;

inline void SpinPause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <typename Done>
Awaited Waiting::Look(const Done& done, RankStatus* status) const {
  if (done()) return Awaited::kDone;
  if (status == nullptr || !health_.Over(status)) return Awaited::kTimeout;  // Not yet.
  // It may have been done before it was over.
  return done() ? Awaited::kDone : Awaited::kOver;
}

template <typename Done>
bool Waiting::Spin(const Done& done, const Deadline& deadline, const WaitingPlace& place) const {
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
Awaited Waiting::Await(const Done& done, const Deadline& deadline, const WaitingPlace& place,
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
Awaited Waiting::Sleep(const Done& done, const Deadline& deadline, RankStatus* status) {
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
    SleepAsFollower(reads, deadline);
  }
}

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_WAITING_H_
