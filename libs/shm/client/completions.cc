// SPDX-License-Identifier: Apache-2.0
// How a rank is told of rounds by a descriptor (docs/shared_memory.md, "A descriptor that tells of
// rounds").
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "libs/shm/client/await.h"
#include "libs/shm/client/client.h"

namespace talweg::shm {

bool Client::IsOver(const Watches::Watch& watch) const {
  if (watch.others.AllReach(watch.round)) return true;
  const Tensor& tensor = *tensors_.Find(watch.tensor);
  if (link_.control().tensor_state(watch.tensor).completed_round.load(std::memory_order_seq_cst) >=
      watch.round) {
    // The other ranks' memory may still lie in the socket: who reads it there looks here again.
    std::byte* arenas[kSummingRanksMax];
    return !tensor.ranks_sum || watch.others.visible() || !states_.Succeeded(tensor, watch.round) ||
           memory_.FindArenas(tensor, arenas);
  }
  return watch.on_device && states_.LostItsEvents(tensor);
}

RankStatus Client::OpenWatches(Watches& watches, int* fd, ErrorText& error) {
  const MutexLock lock(watches.mutex());
  const RankStatus status = watches.Open(
      link_.socket().fd(), health_.watches_agent() ? AgentWatch::kLookEveryNs : 0, error);
  if (status != RankStatus::kOk) return status;
  *fd = watches.fd();
  // What has ended before it was asked for is told, too.
  RankStatus over = RankStatus::kOk;
  if (health_.Over(&over)) watches.Signal();
  return RankStatus::kOk;
}

RankStatus Client::CompletionFd(int* fd, ErrorText& error) {
  return fork_guard_.Forked() ? FailForked(error) : OpenWatches(watches_, fd, error);
}

RankStatus Client::AnotherCompletionFd(int* fd, ErrorText& error) {
  if (fork_guard_.Forked()) return FailForked(error);
  void* const memory = std::calloc(1, sizeof(Watches));
  if (memory == nullptr) {
    return error.Fail(RankStatus::kOutOfMemory, "no memory for another descriptor");
  }
  auto* const watches = new (memory) Watches;
  const RankStatus status = OpenWatches(*watches, fd, error);
  if (status != RankStatus::kOk) {
    watches->~Watches();
    std::free(memory);
    return status;
  }
  const MutexLock lock(state_mutex_);
  Watches* last = &watches_;
  while (last->next() != nullptr) last = last->next();
  last->Append(watches);
  // What has happened since it was opened.
  watches->Signal();
  return RankStatus::kOk;
}

Watches* Client::FindWatches(int fd) {
  for (Watches* each = &watches_; each != nullptr; each = each->next()) {
    if (each->is_open() && (fd < 0 || each->fd() == fd)) return each;
    if (fd < 0) return nullptr;
  }
  return nullptr;
}

RankStatus Client::FailNoDescriptor(int fd, ErrorText& error) {
  if (fd < 0) {
    return error.Fail(RankStatus::kInvalidArgument,
                      "there is no descriptor that could tell of rounds; call "
                      "talweg_completion_fd first");
  }
  return error.Fail(RankStatus::kInvalidArgument,
                    "%d is no descriptor that this client has given to tell of rounds; call "
                    "talweg_another_completion_fd",
                    fd);
}

RankStatus Client::Watch(int fd, uint32_t index, uint64_t round, uint64_t tag, ErrorText& error) {
  if (fork_guard_.Forked()) return FailForked(error);
  const Tensor* tensor = tensors_.Find(index);
  if (tensor == nullptr) return TensorTable::FailNoTensor(index, error);
  Watches* const watches = FindWatches(fd);
  if (watches == nullptr) return FailNoDescriptor(fd, error);
  Watches::Watch watch{.tensor = index, .round = round, .tag = tag};
  {
    const MutexLock lock(state_mutex_);
    if (round == 0 || round > tensor->pushed) return FailNotPushed(*tensor, round, error);
    watch.on_device = tensor->on_device;
    watch.others = memory_.FindPushedRounds(*tensor);
  }
  const MutexLock lock(watches->mutex());
  // With the lock: whoever is told that the client's health has ended has been told of all watches.
  RankStatus over = RankStatus::kOk;
  if (health_.Over(&over)) return health_.FailOver(over, NameOf(*tensor), error);
  const bool is_first = watches->empty();
  if (!watches->Add(watch)) {
    return error.Fail(RankStatus::kOutOfMemory, "tensor '%s': no memory to watch its round",
                      NameOf(*tensor));
  }
  const WaitingPlace place{link_.control().rank_line().waiters, index};
  if (is_first) {
    Enter(place);
  } else {
    const MutexLock state_lock(state_mutex_);
    link_.control().rank_line().awaited.store(0, std::memory_order_seq_cst);
  }
  RingToAwait(place);
  // After it is counted: the agent has seen the count, or its round is seen here.
  if (IsOver(watch)) watches->Signal();
  return RankStatus::kOk;
}

RankStatus Client::Completed(int fd, uint64_t* tags, size_t capacity, size_t* count,
                             ErrorText& error) {
  *count = 0;
  if (fork_guard_.Forked()) return FailForked(error);
  Watches* const watches = FindWatches(fd);
  if (watches == nullptr) return FailNoDescriptor(fd, error);
  watches->Drain();
  ReadSocketOrBeTold(watches);
  const MutexLock lock(watches->mutex());
  RankStatus over = RankStatus::kOk;
  const bool is_over = health_.Over(&over);
  const bool watched = !watches->empty();
  bool more = false;
  *count = watches->Take([&](const Watches::Watch& watch) { return is_over || IsOver(watch); },
                         tags, capacity, &more);
  if (watched && watches->empty()) {
    link_.control().rank_line().waiters.fetch_sub(1, std::memory_order_seq_cst);
  }
  if (more || is_over) watches->Signal();
  return is_over && *count == 0 ? health_.FailOver(over, "the client", error) : RankStatus::kOk;
}

void Client::ReadSocketOrBeTold(const Watches* own) {
  if (reading_.exchange(true, std::memory_order_seq_cst)) {
    unread_.store(true, std::memory_order_seq_cst);
    // Its reader may have stopped meanwhile, and not have seen that.
    if (reading_.exchange(true, std::memory_order_seq_cst)) return;
  }
  ReadAgent();
  TellWatchers(own);
  StopReading();
}

void Client::TellWatchers(const Watches* but) {
  for (Watches* each = &watches_; each != nullptr; each = each->next()) {
    if (each == but || !each->is_open()) continue;
    const MutexLock lock(each->mutex());
    RankStatus over = RankStatus::kOk;
    if (health_.Over(&over) || each->Any([&](const auto& watch) { return IsOver(watch); }))
      each->Signal();
  }
}

void Client::SignalAll() const {
  for (const Watches* each = &watches_; each != nullptr; each = each->next()) each->Signal();
}

}  // namespace talweg::shm
