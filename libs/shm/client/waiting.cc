// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/waiting.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#include "libs/shm/client/cpus.h"
#include "libs/shm/layout/control.h"

namespace talweg::shm {
namespace {

int64_t DefaultSpinNs() {
  const int count = Cpus(0).count;
  // On few cores, a thread that spins keeps the agent from running.
  return count <= 2 ? 2'000 : count <= 8 ? 20'000 : 50'000;
}

// Sleeps while *word is `expected`, until the deadline, a wake or a signal.
void FutexWait(std::atomic<uint32_t>& word, uint32_t expected, const Deadline& deadline) {
  const timespec left = deadline.never() ? timespec{} : ToTimespec(deadline.LeftNs(MonotonicNs()));
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, deadline.never() ? nullptr : &left,
            nullptr, 0);
}

}  // namespace

void Waiting::Begin(int64_t spin_ns) { spin_ns_ = spin_ns >= 0 ? spin_ns : DefaultSpinNs(); }

void Waiting::WakeFollowers() {
  reads_.fetch_add(1, std::memory_order_seq_cst);
  // A thread that registers later also looks at reads_ later, and does not sleep.
  if (followers_.load(std::memory_order_seq_cst) == 0) return;
  ::syscall(SYS_futex, &reads_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void Waiting::StopReading() {
  // Sequentially consistent, as the exchange of a thread that finds it taken: one of the two sees
  // the other.
  reading_.store(false, std::memory_order_seq_cst);
  WakeFollowers();  // One of them becomes the reader if this thread is done.
  if (unread_.load(std::memory_order_seq_cst) &&
      unread_.exchange(false, std::memory_order_seq_cst)) {
    watchers_.SignalAll();
  }
}

void Waiting::Enter(const WaitingPlace& place) {
  if (!place.tensor) {
    place.sleepers.fetch_add(1, std::memory_order_seq_cst);
    return;
  }
  // One thread at a time: two must not both count as the only one.
  const MutexLock lock(state_mutex_);
  const bool is_only = place.sleepers.load(std::memory_order_seq_cst) == 0;
  link_.control().rank_line().awaited_bytes.store(place.awaited_bytes, std::memory_order_seq_cst);
  link_.control().rank_line().awaited.store(is_only ? *place.tensor + 1 : 0,
                                            std::memory_order_seq_cst);
  place.sleepers.fetch_add(1, std::memory_order_seq_cst);
}

void Waiting::RingToAwait(const WaitingPlace& place) {
  // An answer that comes by the socket needs no push.
  if (&place.sleepers != &uncounted_) bell_.Ring(AgentBell::Sleeping::kUntilAwaited);
}

void Waiting::SleepAsFollower(uint32_t reads, const Deadline& deadline) {
  followers_.fetch_add(1, std::memory_order_seq_cst);
  FutexWait(reads_, reads, deadline);
  followers_.fetch_sub(1, std::memory_order_seq_cst);
}

void Waiting::ReadSocket(int64_t every_ns) {
  const int64_t now_ns = MonotonicNs();
  if (now_ns - looked_ns_.load(std::memory_order_relaxed) < every_ns) return;
  looked_ns_.store(now_ns, std::memory_order_relaxed);
  if (reading_.exchange(true, std::memory_order_seq_cst)) return;
  LookAtAgent();
  StopReading();
}

void Waiting::LookAtAgent() {
  ReadAgent();
  watchers_.Tell();
}

void Waiting::ReadAgent() {
  inbox_.Read();
  health_.LookAtBeats();
}

void Waiting::ReadSocketOrBeTold(const Watches* own) {
  if (reading_.exchange(true, std::memory_order_seq_cst)) {
    unread_.store(true, std::memory_order_seq_cst);
    // The reader may have stopped meanwhile without seeing `unread_`.
    if (reading_.exchange(true, std::memory_order_seq_cst)) return;
  }
  ReadAgent();
  watchers_.Tell(own);
  StopReading();
}

}  // namespace talweg::shm
