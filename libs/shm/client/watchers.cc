// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/watchers.h"

#include <cstdlib>
#include <new>

#include "libs/shm/client/agent_watch.h"

namespace talweg::shm {

Watchers::~Watchers() {
  for (Watches* each = first_.next(); each != nullptr;) {
    Watches* const next = each->next();
    each->~Watches();
    std::free(each);
    each = next;
  }
}

bool Watchers::IsOver(const Watches::Watch& watch) const {
  if (watch.others.AllReach(watch.round)) return true;
  const RankTensor& tensor = *tensors_.Find(watch.tensor);
  if (states_.Completed(tensor) >= watch.round) {
    // The other ranks' memory may still lie in the socket. The thread that reads it there looks
    // here again.
    std::byte* arenas[kSummingRanksMax];
    return !tensor.ranks_sum || watch.others.visible() || !states_.Succeeded(tensor, watch.round) ||
           memory_.FindArenas(tensor, arenas);
  }
  return watch.on_device && states_.LostItsEvents(tensor);
}

RankStatus Watchers::Open(Watches& watches, int* fd, ErrorText& error) {
  const MutexLock lock(watches.mutex());
  const RankStatus status = watches.Open(
      link_.socket().fd(), health_.watches_agent() ? AgentWatch::kLookEveryNs : 0, error);
  if (status != RankStatus::kOk) return status;
  *fd = watches.fd();
  // An end before the descriptor was opened is told, too.
  RankStatus over = RankStatus::kOk;
  if (health_.Over(&over)) watches.Signal();
  return RankStatus::kOk;
}

RankStatus Watchers::OpenFirst(int* fd, ErrorText& error) { return Open(first_, fd, error); }

RankStatus Watchers::OpenAnother(int* fd, ErrorText& error) {
  void* const memory = std::calloc(1, sizeof(Watches));
  if (memory == nullptr) {
    return error.Fail(RankStatus::kOutOfMemory, "no memory for another descriptor");
  }
  auto* const watches = new (memory) Watches;
  const RankStatus status = Open(*watches, fd, error);
  if (status != RankStatus::kOk) {
    watches->~Watches();
    std::free(memory);
    return status;
  }
  const MutexLock lock(state_mutex_);
  Watches* last = &first_;
  while (last->next() != nullptr) last = last->next();
  last->Append(watches);
  // Tells what has happened since it was opened.
  watches->Signal();
  return RankStatus::kOk;
}

Watches* Watchers::Find(int fd) {
  for (Watches* each = &first_; each != nullptr; each = each->next()) {
    if (each->is_open() && (fd < 0 || each->fd() == fd)) return each;
    if (fd < 0) return nullptr;
  }
  return nullptr;
}

RankStatus Watchers::FailNoDescriptor(int fd, ErrorText& error) {
  if (fd < 0) {
    return error.Fail(RankStatus::kInvalidArgument,
                      "there is no descriptor that could tell of rounds; call "
                      "talweg_completion_fd first");
  }
  return error.Fail(RankStatus::kInvalidArgument,
                    "%d is not a descriptor that this client has given to tell of rounds; call "
                    "talweg_another_completion_fd",
                    fd);
}

void Watchers::Tell(const Watches* but) {
  for (Watches* each = &first_; each != nullptr; each = each->next()) {
    if (each == but || !each->is_open()) continue;
    const MutexLock lock(each->mutex());
    RankStatus over = RankStatus::kOk;
    if (health_.Over(&over) || each->Any([&](const auto& watch) { return IsOver(watch); }))
      each->Signal();
  }
}

void Watchers::SignalAll() const {
  for (const Watches* each = &first_; each != nullptr; each = each->next()) each->Signal();
}

}  // namespace talweg::shm
