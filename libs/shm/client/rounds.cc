// SPDX-License-Identifier: Apache-2.0
// How a rank waits for a round, and what it comes to.
#include <cstring>

#include "libs/shm/client/client.h"

namespace talweg::shm {

RankStatus Client::Poll(uint32_t index, uint64_t round, ErrorText& error) {
  if (fork_guard_.Forked()) return FailForked(error);
  Tensor* tensor = tensors_.Find(index);
  if (tensor == nullptr) return TensorTable::FailNoTensor(index, error);
  bool on_device = false;
  PushedRounds others;
  {
    const MutexLock lock(state_mutex_);
    if (round == 0 || round > tensor->pushed) return FailNotPushed(*tensor, round, error);
    on_device = tensor->on_device;
    others = memory_.FindPushedRounds(*tensor);
  }
  const std::atomic<uint64_t>& completed = link_.control().tensor_state(index).completed_round;
  const auto done = [&] {
    return completed.load(std::memory_order_seq_cst) >= round || others.AllReach(round);
  };
  if (done()) return RankStatus::kOk;
  bell_.RingForPoll(!others.visible());
  waiting_.ReadSocket(kLookEveryNs);
  RankStatus over = RankStatus::kOk;
  switch (waiting_.Look(done, &over)) {
    case Awaited::kDone: return RankStatus::kOk;
    case Awaited::kOver: return health_.FailOver(over, NameOf(*tensor), error);
    case Awaited::kTimeout: break;
  }
  if (on_device && states_.LostItsEvents(*tensor)) return FailEventsLost(*tensor, error);
  return RankStatus::kPending;
}

RankStatus Client::Wait(uint32_t index, uint64_t round, const Taking& taking, int64_t timeout_ns,
                        ErrorText& error) {
  if (fork_guard_.Forked()) return FailForked(error);
  Tensor* tensor = tensors_.Find(index);
  if (tensor == nullptr) return TensorTable::FailNoTensor(index, error);
  const std::atomic<uint64_t>& completed = link_.control().tensor_state(index).completed_round;
  const int64_t begin_ns = MonotonicNs();
  statistics_.waits.fetch_add(1, std::memory_order_relaxed);
  bool on_device = false;
  bool is_short = false;
  bool compares = false;
  const std::byte* own_part = nullptr;
  PushedRounds others;
  ArrivingResult::Copied copied_early;
  {
    // Who is too late for a round must not wait for one that nobody has pushed.
    const MutexLock lock(state_mutex_);
    if (round == 0 || round != tensor->pushed) {
      return error.Fail(RankStatus::kInvalidArgument,
                        "tensor '%s': round %llu is not the last that was pushed, which is %llu",
                        NameOf(*tensor), static_cast<unsigned long long>(round),
                        static_cast<unsigned long long>(tensor->pushed));
    }
    on_device = tensor->on_device;
    if (on_device && taking.out != nullptr) return FailOnDevice(*tensor, error);
    is_short = tensor->pushed_short;
    own_part = tensor->own_part;
    compares = tensor->tells_pushes() && tensor->shape.has_tables;
    others = memory_.FindPushedRounds(*tensor);
    // Two waits for one round: the second must not lose its result to a push after the first. From
    // here on a push is kBusy.
    ++tensor->readers;
    if (taking.again) copied_early = tensor->copied_early;
    tensor->copied_early = {};
  }
  RankStatus over = RankStatus::kOk;
  const Deadline deadline(timeout_ns);
  const auto complete = [&] {
    return completed.load(std::memory_order_seq_cst) >= round || others.AllReach(round);
  };
  const auto ended = [&] { return complete() || (on_device && states_.LostItsEvents(*tensor)); };
  ArrivingResult arriving = Arriving(*tensor, round, taking, is_short);
  arriving.GoOnBehind(copied_early);
  const bool only_looks = timeout_ns == 0;  // And has no time to copy what is not all of it.
  Awaited awaited = Awaited::kTimeout;
  while (awaited == Awaited::kTimeout) {
    awaited = waiting_.Await([&] { return ended() || (!only_looks && arriving.Ready()); }, deadline,
                             {link_.control().rank_line().waiters, index,
                              only_looks ? 0 : arriving.awaited_bytes(), !others.visible()},
                             &over);
    if (awaited != Awaited::kDone || ended()) break;
    arriving.CopyNew();
    awaited = waiting_.Look(ended, &over);
    if (deadline.Passed(MonotonicNs())) break;
  }
  const bool events_lost = awaited == Awaited::kDone && !complete();
  const bool in_place =
      !on_device && (tensor->shape.in_place || tensor->in_place.load(std::memory_order_relaxed));
  const bool reads = taking.NeedsLengths() || in_place;
  if (awaited == Awaited::kDone && tensor->ranks_sum && (reads || compares) &&
      states_.Succeeded(*tensor, round)) {
    awaited = AwaitContributions(*tensor, deadline, &over);
  }
  statistics_.wait_ns.fetch_add(static_cast<uint64_t>(MonotonicNs() - begin_ns),
                                std::memory_order_relaxed);
  RankStatus status = RankStatus::kOk;
  Ending ending;
  switch (awaited) {
    case Awaited::kDone:
      if (events_lost) {
        status = FailEventsLost(*tensor, error);
        break;
      }
      ending.is_taken = true;
      status = states_.Status(*tensor, round, error);
      if (status != RankStatus::kOk) break;
      status = TakeRound(*tensor, {round, is_short, compares, own_part}, taking, in_place,
                         on_device, arriving, deadline, &ending, error);
      break;
    case Awaited::kOver: status = health_.FailOver(over, NameOf(*tensor), error); break;
    case Awaited::kTimeout:
      status = error.Fail(
          RankStatus::kTimeout,
          "tensor '%s': round %llu is not complete after %.3f s; it stays open, wait again",
          NameOf(*tensor), static_cast<unsigned long long>(round),
          static_cast<double>(timeout_ns) / 1e9);
      break;
  }
  statistics_.bytes_copied.fetch_add(arriving.bytes_copied(), std::memory_order_relaxed);
  // Who needs the agent for nothing must still learn that it is gone.
  if (others.visible()) waiting_.ReadSocket(kLookEveryNs);
  const MutexLock lock(state_mutex_);
  --tensor->readers;
  if (awaited == Awaited::kTimeout) tensor->copied_early = arriving.copied();
  if (ending.ranks_disagree) tensor->disagreed = round;
  if (ending.is_taken) EndRound(index, *tensor, round);
  return status;
}

void Client::EndRound(uint32_t index, Tensor& tensor, uint64_t round) {
  if (tensor.taken < round) {
    tensor.taken = round;
    streaming_.EndRound(tensor.open_bytes);
    tensor.open_bytes = 0;
  }
  if (states_.Succeeded(tensor, round)) return;
  const TensorState& state = link_.control().tensor_state(index);
  if (state.goes_on.load(std::memory_order_relaxed) == 0) tensor.failed = true;
}

Awaited Client::AwaitContributions(const Tensor& tensor, const Deadline& deadline,
                                   RankStatus* over) {
  std::byte* arenas[kSummingRanksMax];
  if (memory_.FindArenas(tensor, arenas)) return Awaited::kDone;
  // They came before the round was complete: a look at the socket usually is enough.
  waiting_.ReadSocket(0);
  return waiting_.Await([&] { return memory_.FindArenas(tensor, arenas); }, deadline,
                        {waiting_.uncounted()}, over);
}

uint64_t Client::RanksSummed(uint32_t index) const {
  const Tensor* tensor = fork_guard_.Forked() ? nullptr : tensors_.Find(index);
  if (tensor == nullptr) return 0;
  const TensorState& state = link_.control().tensor_state(index);
  {
    const MutexLock lock(state_mutex_);
    if (tensor->disagreed != 0 && tensor->disagreed == tensor->taken) return 0;
    if (state.completed_round.load(std::memory_order_acquire) < tensor->taken) {
      return identity_.local_size;  // The ranks have seen it complete.
    }
  }
  if (state.status.load(std::memory_order_relaxed) != 0) return 0;
  return state.ranks_summed.load(std::memory_order_relaxed);
}

uint64_t Client::OpenRound(uint32_t index) const {
  const Tensor* tensor = fork_guard_.Forked() ? nullptr : tensors_.Find(index);
  if (tensor == nullptr) return 0;
  const MutexLock lock(state_mutex_);
  return tensor->pushed > tensor->taken ? tensor->pushed : 0;
}

}  // namespace talweg::shm
