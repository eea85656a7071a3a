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

// Where the agent sees that it must wake a thread. The thread is counted in `sleepers`; in
// Waiting::uncounted() if it waits for something that comes by the socket anyway. A thread that
// waits for a tensor is also named in `awaited` if it is the only one.
struct WaitingPlace {
  std::atomic<uint32_t>& sleepers;
  std::optional<uint32_t> tensor = std::nullopt;
  uint64_t awaited_bytes = 0;  // Result bytes to be woken for before the round is complete.
  bool needs_agent = true;     // Otherwise running ranks may bring about what it waits for.
};

// How a wait has ended: its condition holds; nothing can go on any more; or not yet.
enum class Awaited { kDone, kOver, kTimeout };

// How a rank's threads wait, and who reads the socket meanwhile (docs/shared_memory.md, "Waiting").
// Any thread may call any function. At most one thread at a time is the reader. The reader reads
// the socket, sleeping on it if need be, hands out the messages, and watches whether the agent
// still runs. Other sleeping threads sleep until the reader stops. Then each checks its own
// condition, and one of them becomes the reader.
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

  // Call it before anything is waited for. Negative: chosen by the number of CPUs.
  void Begin(int64_t spin_ns);

  // Waits until done(), until nothing can go on, or until the deadline. With a null `status`, only
  // done() and the deadline count.
  template <typename Done>
  Awaited Await(const Done& done, const Deadline& deadline, const WaitingPlace& place,
                RankStatus* status);
  // Checks without waiting. kTimeout: not yet.
  template <typename Done>
  Awaited Look(const Done& done, RankStatus* status) const;

  // Counts the threads that the agent need not know of.
  std::atomic<uint32_t>& uncounted() { return uncounted_; }
  // Counts a thread at its place.
  void Enter(const WaitingPlace& place);
  // Ends a sleep of the agent that lasts until a thread waits.
  void RingToAwait(const WaitingPlace& place);

  // Reads the socket without waiting, unless another thread reads it. Does so at most every
  // `every_ns`.
  void ReadSocket(int64_t every_ns);
  // Reads the socket, unless another thread reads it: then the client's descriptors become readable
  // when that thread stops. `own`: the caller looks at these watches itself.
  void ReadSocketOrBeTold(const Watches* own);
  // Makes sleeping threads look again.
  void WakeFollowers();

 private:
  // Spins until its time is over, or done().
  template <typename Done>
  bool Spin(const Done& done, const Deadline& deadline, const WaitingPlace& place) const;
  template <typename Done>
  Awaited Sleep(const Done& done, const Deadline& deadline, RankStatus* status);
  // Sleeps until reads_ changes from `reads`.
  void SleepAsFollower(uint32_t reads, const Deadline& deadline);

  // The reader's. Handles what the socket holds, and watches whether the agent runs. Then tells the
  // descriptors what has come of it.
  void LookAtAgent();
  void ReadAgent();
  // This thread stops being the reader.
  void StopReading();

  AgentLink& link_;
  ClientHealth& health_;
  AgentBell& bell_;
  Inbox& inbox_;
  Watchers& watchers_;
  ClientStatistics& statistics_;
  Mutex& state_mutex_;
  int64_t spin_ns_ = 0;
  std::atomic<bool> reading_{false};  // Whether there is a reader.
  std::atomic<uint32_t> reads_{0};    // Increased by a reader that stops.
  std::atomic<uint32_t> followers_{0};
  std::atomic<int64_t> looked_ns_{0};  // When ReadSocket last read.
  // A thread wanted to read the socket while another was reading it.
  std::atomic<bool> unread_{false};
  std::atomic<uint32_t> uncounted_{0};
};

// A running rank comes sooner than this. The agent would have to be woken first, and then wake this
// thread.
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
  // done() may have become true before the client's end.
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
  // With more ranks than CPUs, the awaited rank may need just this CPU.
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
  if (place.needs_agent) RingToAwait(place);  // The agent then runs while this thread spins.
  if (Spin(done, deadline, place)) return Awaited::kDone;
  if (deadline.Passed(MonotonicNs())) {
    // A caller that never waits must still learn that the agent is gone, and hear what only the
    // agent knows.
    if (!place.needs_agent) bell_.RingForPoll(false);
    ReadSocket(kLookEveryNs);
    return Look(done, status);
  }
  Enter(place);
  // Sequentially consistent, like the count: an agent that has gone to sleep meanwhile has either
  // seen the count, or its sleep is seen here.
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
      // Look again: the previous reader may have read the Wake that was meant for this thread.
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
