// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/completions.h"

#include <atomic>

#include "libs/shm/client/pushed_rounds.h"
#include "libs/shm/layout/control.h"

namespace talweg::shm {

RankStatus Completions::Watch(int fd, const RankTensor& tensor, uint64_t round, uint64_t tag,
                              ErrorText& error) {
  Watches* const watches = watchers_.Find(fd);
  if (watches == nullptr) return Watchers::FailNoDescriptor(fd, error);
  Watches::Watch watch{.tensor = tensor.index, .round = round, .tag = tag};
  {
    const MutexLock lock(state_mutex_);
    if (round == 0 || round > tensor.pushed) return FailNotPushed(tensor, round, error);
    watch.on_device = tensor.on_device;
    watch.others = memory_.FindPushedRounds(tensor);
  }
  const MutexLock lock(watches->mutex());
  // With the lock: a caller that is told that the client's health has ended has been told of all
  // watches.
  RankStatus over = RankStatus::kOk;
  if (health_.Over(&over)) return health_.FailOver(over, NameOf(tensor), error);
  const bool is_first = watches->empty();
  if (!watches->Add(watch)) {
    return error.Fail(RankStatus::kOutOfMemory, "tensor '%s': no memory to watch its round",
                      NameOf(tensor));
  }
  const WaitingPlace place{link_.control().rank_line().waiters, tensor.index};
  if (is_first) {
    waiting_.Enter(place);
  } else {
    const MutexLock state_lock(state_mutex_);
    link_.control().rank_line().awaited.store(0, std::memory_order_seq_cst);
  }
  waiting_.RingToAwait(place);
  // After the watch is counted: either the agent has seen the count, or the round is seen here.
  if (watchers_.IsOver(watch)) watches->Signal();
  return RankStatus::kOk;
}

RankStatus Completions::Completed(int fd, uint64_t* tags, size_t capacity, size_t* count,
                                  ErrorText& error) {
  *count = 0;
  Watches* const watches = watchers_.Find(fd);
  if (watches == nullptr) return Watchers::FailNoDescriptor(fd, error);
  watches->Drain();
  waiting_.ReadSocketOrBeTold(watches);
  const MutexLock lock(watches->mutex());
  RankStatus over = RankStatus::kOk;
  const bool is_over = health_.Over(&over);
  const bool watched = !watches->empty();
  bool more = false;
  *count =
      watches->Take([&](const Watches::Watch& watch) { return is_over || watchers_.IsOver(watch); },
                    tags, capacity, &more);
  if (watched && watches->empty()) {
    link_.control().rank_line().waiters.fetch_sub(1, std::memory_order_seq_cst);
  }
  if (more || is_over) watches->Signal();
  return is_over && *count == 0 ? health_.FailOver(over, "the client", error) : RankStatus::kOk;
}

}  // namespace talweg::shm
