// SPDX-License-Identifier: Apache-2.0
// How a rank is told of rounds by a descriptor (docs/shared_memory.md, "A descriptor that tells of
// rounds").
#include <atomic>
#include <cstdint>

#include "libs/shm/client/await.h"
#include "libs/shm/client/client.h"

namespace talweg::shm {

bool Client::IsOver(const Watches::Watch& watch) const {
  if (watch.others.AllReach(watch.round)) return true;
  const Tensor& tensor = *Find(watch.tensor);
  if (control_.tensor_state(watch.tensor).completed_round.load(std::memory_order_seq_cst) >=
      watch.round) {
    // The other ranks' memory may still lie in the socket: who reads it there looks here again.
    std::byte* arenas[kSummingRanksMax];
    return !tensor.ranks_sum || watch.others.visible() ||
           !RoundSucceeded(watch.tensor, watch.round) || FindArenas(tensor, arenas);
  }
  return watch.on_device && LostItsEvents(tensor);
}

RankStatus Client::CompletionFd(int* fd, ErrorText& error) {
  if (Forked()) return FailForked(error);
  const MutexLock lock(watches_.mutex());
  const RankStatus status =
      watches_.Open(socket_.fd(), agent_watch_.watches() ? AgentWatch::kLookEveryNs : 0, error);
  if (status != RankStatus::kOk) return status;
  *fd = watches_.fd();
  // What has ended before it was asked for is told, too.
  RankStatus over = RankStatus::kOk;
  if (Over(&over)) watches_.Signal();
  return RankStatus::kOk;
}

RankStatus Client::Watch(uint32_t index, uint64_t round, uint64_t tag, ErrorText& error) {
  if (Forked()) return FailForked(error);
  const Tensor* tensor = Find(index);
  if (tensor == nullptr) return FailNoTensor(index, error);
  if (!watches_.is_open()) {
    return error.Fail(RankStatus::kInvalidArgument,
                      "tensor '%s': there is no descriptor that could tell of its round; call "
                      "talweg_completion_fd first",
                      NameOf(*tensor));
  }
  Watches::Watch watch{.tensor = index, .round = round, .tag = tag};
  {
    const MutexLock lock(state_mutex_);
    if (round == 0 || round > tensor->pushed) return FailNotPushed(*tensor, round, error);
    watch.on_device = tensor->on_device;
    watch.others = FindPushedRounds(*tensor);
  }
  const MutexLock lock(watches_.mutex());
  // With the lock: whoever is told that the client's health has ended has been told of all watches.
  RankStatus over = RankStatus::kOk;
  if (Over(&over)) return FailOver(over, NameOf(*tensor), error);
  const bool is_first = watches_.empty();
  if (!watches_.Add(watch)) {
    return error.Fail(RankStatus::kOutOfMemory, "tensor '%s': no memory to watch its round",
                      NameOf(*tensor));
  }
  const WaitingPlace place{control_.rank_line().waiters, index};
  if (is_first) {
    Enter(place);
  } else {
    const MutexLock state_lock(state_mutex_);
    control_.rank_line().awaited.store(0, std::memory_order_seq_cst);
  }
  RingToAwait(place);
  // After it is counted: the agent has seen the count, or its round is seen here.
  if (IsOver(watch)) watches_.Signal();
  return RankStatus::kOk;
}

RankStatus Client::Completed(uint64_t* tags, size_t capacity, size_t* count, ErrorText& error) {
  *count = 0;
  if (Forked()) return FailForked(error);
  if (!watches_.is_open()) {
    return error.Fail(RankStatus::kInvalidArgument,
                      "no round can have been watched: call talweg_completion_fd first");
  }
  watches_.Drain();
  ReadSocketOrBeTold();
  const MutexLock lock(watches_.mutex());
  RankStatus over = RankStatus::kOk;
  const bool is_over = Over(&over);
  const bool watched = !watches_.empty();
  bool more = false;
  *count = watches_.Take([&](const Watches::Watch& watch) { return is_over || IsOver(watch); },
                         tags, capacity, &more);
  if (watched && watches_.empty()) {
    control_.rank_line().waiters.fetch_sub(1, std::memory_order_seq_cst);
  }
  if (more || is_over) watches_.Signal();
  return is_over && *count == 0 ? FailOver(over, "the client", error) : RankStatus::kOk;
}

void Client::ReadSocketOrBeTold() {
  if (reading_.exchange(true, std::memory_order_seq_cst)) {
    unread_.store(true, std::memory_order_seq_cst);
    // Its reader may have stopped meanwhile, and not have seen that.
    if (reading_.exchange(true, std::memory_order_seq_cst)) return;
  }
  ReadAgent();
  StopReading();
}

void Client::TellWatchers() {
  if (!watches_.is_open()) return;
  const MutexLock lock(watches_.mutex());
  RankStatus over = RankStatus::kOk;
  if (Over(&over) || watches_.Any([&](const auto& watch) { return IsOver(watch); })) {
    watches_.Signal();
  }
}

}  // namespace talweg::shm
