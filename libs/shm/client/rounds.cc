// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/rounds.h"

#include <optional>

#include "libs/shm/client/agent_bell.h"
#include "libs/shm/client/deadline.h"

namespace talweg::shm {

RankStatus Rounds::Poll(const RankTensor& tensor, uint64_t round, ErrorText& error) {
  bool on_device = false;
  PushedRounds others;
  {
    const MutexLock lock(state_mutex_);
    if (round == 0 || round > tensor.pushed) return FailNotPushed(tensor, round, error);
    on_device = tensor.on_device;
    others = memory_.FindPushedRounds(tensor);
  }
  const auto done = [&] { return states_.IsComplete(tensor, round, others); };
  if (done()) return RankStatus::kOk;
  bell_.RingForPoll(!others.visible());
  waiting_.ReadSocket(kLookEveryNs);
  RankStatus over = RankStatus::kOk;
  switch (waiting_.Look(done, &over)) {
    case Awaited::kDone: return RankStatus::kOk;
    case Awaited::kOver: return health_.FailOver(over, NameOf(tensor), error);
    case Awaited::kTimeout: break;
  }
  if (on_device && states_.LostItsEvents(tensor)) return FailEventsLost(tensor, error);
  return RankStatus::kPending;
}

RankStatus Rounds::Wait(RankTensor& tensor, uint64_t round, const Taking& taking,
                        int64_t timeout_ns, ErrorText& error) {
  const int64_t begin_ns = MonotonicNs();
  statistics_.waits.fetch_add(1, std::memory_order_relaxed);
  RoundCall call{.tensor = tensor,
                 .taking = taking,
                 .deadline = Deadline(timeout_ns),
                 .only_looks = timeout_ns == 0};
  if (const RankStatus found = FindPushed(call, round, error); found != RankStatus::kOk) {
    return found;
  }
  Ending ending;
  const RankStatus status = InItsWay(
      call, [&](auto& way) { return WaitIn(way, call, begin_ns, timeout_ns, &ending, error); });
  statistics_.bytes_copied.fetch_add(call.arriving.bytes_copied(), std::memory_order_relaxed);
  // A caller that does not need the agent must still learn that it is gone.
  if (call.opened.others.visible()) waiting_.ReadSocket(kLookEveryNs);
  const MutexLock lock(state_mutex_);
  --tensor.readers;
  if (ending.is_late) tensor.copied_early = call.arriving.copied();
  if (ending.ranks_disagree) tensor.disagreed = round;
  if (ending.is_taken) End(tensor, round);
  return status;
}

RankStatus Rounds::FindPushed(RoundCall& call, uint64_t round, ErrorText& error) {
  RankTensor& tensor = call.tensor;
  // A caller that is too late for a round must not wait for one that nobody has pushed.
  const MutexLock lock(state_mutex_);
  if (round == 0 || round != tensor.pushed) {
    return error.Fail(RankStatus::kInvalidArgument,
                      "tensor '%s': round %llu is not the last that was pushed, which is %llu",
                      NameOf(tensor), static_cast<unsigned long long>(round),
                      static_cast<unsigned long long>(tensor.pushed));
  }
  if (tensor.on_device && call.taking.out != nullptr) return FailOnDevice(tensor, error);
  call.opened = OpenedRound::Of(tensor);
  call.opened.others = memory_.FindPushedRounds(tensor);
  // If two threads wait for one round, the second must not lose its result to a push after the
  // first. From here on a push is kBusy.
  ++tensor.readers;
  if (call.taking.again) call.copied_early = tensor.copied_early;
  tensor.copied_early = {};
  return RankStatus::kOk;
}

template <ResultWay Way>
RankStatus Rounds::WaitIn(Way& way, RoundCall& call, int64_t begin_ns, int64_t timeout_ns,
                          Ending* ending, ErrorText& error) {
  RankTensor& tensor = call.tensor;
  const OpenedRound& opened = call.opened;
  RankStatus over = RankStatus::kOk;
  Awaited awaited = way.Await(call, &over);
  // Only a round whose events are lost ends its wait without being complete.
  const bool events_lost =
      awaited == Awaited::kDone && !states_.IsComplete(tensor, opened.round, opened.others);
  // Read only once: another thread may declare the tensor in place meanwhile.
  call.is_in_place = Way::GoesInPlace(tensor);
  const bool reads = call.taking.NeedsLengths() || call.is_in_place;
  if (awaited == Awaited::kDone && (reads || opened.compares) &&
      states_.Succeeded(tensor, opened.round)) {
    awaited = way.AwaitInputs(call, &over);
  }
  statistics_.wait_ns.fetch_add(static_cast<uint64_t>(MonotonicNs() - begin_ns),
                                std::memory_order_relaxed);
  switch (awaited) {
    case Awaited::kDone: break;
    case Awaited::kOver: return health_.FailOver(over, NameOf(tensor), error);
    case Awaited::kTimeout:
      ending->is_late = true;
      return error.Fail(
          RankStatus::kTimeout,
          "tensor '%s': round %llu is not complete after %.3f s; it stays open, wait again",
          NameOf(tensor), static_cast<unsigned long long>(opened.round),
          static_cast<double>(timeout_ns) / 1e9);
  }
  if (events_lost) return FailEventsLost(tensor, error);
  ending->is_taken = true;
  const RankStatus status = states_.Status(tensor, opened.round, error);
  return status == RankStatus::kOk ? TakeIn(way, call, reads, ending, error) : status;
}

template <ResultWay Way>
RankStatus Rounds::TakeIn(Way& way, RoundCall& call, bool reads, Ending* ending, ErrorText& error) {
  const RankTensor& tensor = call.tensor;
  const Taking& taking = call.taking;
  CompleteRound complete{.round = call.opened.round};
  complete.own_part = call.opened.own_part;
  if (reads || call.opened.compares) {
    const RankStatus found = way.Find(call, &complete, error);
    ending->ranks_disagree = found == RankStatus::kMismatch;
    if (found != RankStatus::kOk) return found;
  } else {
    complete.lengths = RoundLengths(tensor.buffer);
  }
  uint64_t bytes = 0;
  if (reads) {
    const RankStatus said = parts_.SayLengths(tensor, complete, taking.lengths, &bytes, error);
    if (said != RankStatus::kOk) return said;
  }
  ending->is_taken = taking.takes;
  if (!taking.takes || !Way::kInHostMemory) return RankStatus::kOk;
  const bool goes_in_place = call.is_in_place && taking.out == nullptr;
  bool stays_open = false;
  const RankStatus room =
      parts_.CheckRoom(tensor, complete, taking, goes_in_place, bytes, &stays_open, error);
  if (stays_open) ending->is_taken = false;
  if (room != RankStatus::kOk) return room;
  if (taking.out == nullptr && taking.places == nullptr && !goes_in_place) return RankStatus::kOk;
  const RankStatus status = way.Take(call, complete, bytes, error);
  // Other ranks have not done their pieces of the round.
  if (status == RankStatus::kTimeout) ending->is_taken = false;
  return status;
}

void Rounds::End(RankTensor& tensor, uint64_t round) {
  if (tensor.taken < round) {
    tensor.taken = round;
    streaming_.EndRound(tensor.open_bytes);
    tensor.open_bytes = 0;
    const std::optional<GoodRound> good = states_.Good(tensor, round);
    tensor.carries = good && good->left_out;
    tensor.left_out_count += tensor.carries ? 1 : 0;
  }
  if (states_.Succeeded(tensor, round)) return;
  const TensorState& state = states_.Of(tensor);
  if (state.goes_on.load(std::memory_order_relaxed) == 0) tensor.failed = true;
}

RankStatus Rounds::Result(RankTensor& tensor, uint64_t round, const void** data, uint64_t* bytes,
                          ErrorText& error) {
  const Taking nothing;
  RoundCall call{.tensor = tensor, .taking = nothing, .deadline = Deadline(-1)};
  if (const RankStatus found = FindTaken(call, round, error); found != RankStatus::kOk) {
    return found;
  }
  const RankStatus status =
      InItsWay(call, [&](auto& way) { return ShowIn(way, call, data, bytes, error); });
  const MutexLock lock(state_mutex_);
  --tensor.readers;
  return status;
}

RankStatus Rounds::FindTaken(RoundCall& call, uint64_t round, ErrorText& error) {
  RankTensor& tensor = call.tensor;
  const MutexLock lock(state_mutex_);
  if (round == 0 || tensor.taken != round || tensor.pushed != round) {
    return error.Fail(RankStatus::kInvalidArgument,
                      "tensor '%s': round %llu is not the one that was waited for last (%llu)",
                      NameOf(tensor), static_cast<unsigned long long>(round),
                      static_cast<unsigned long long>(tensor.taken));
  }
  if (tensor.on_device) return FailOnDevice(tensor, error);
  if (tensor.gets.count > 1) {
    return error.Fail(RankStatus::kInvalidArgument,
                      "tensor '%s': this rank gets %u parts, which do not lie one after another; "
                      "have them copied (talweg_wait_parts)",
                      NameOf(tensor), tensor.gets.count);
  }
  call.opened = OpenedRound::Of(tensor);
  ++tensor.readers;  // From here on a push is kBusy, as in Wait.
  return RankStatus::kOk;
}

template <ResultWay Way>
RankStatus Rounds::ShowIn(Way& way, RoundCall& call, const void** data, uint64_t* bytes,
                          ErrorText& error) {
  const RankTensor& tensor = call.tensor;
  RankStatus status = states_.Status(tensor, call.opened.round, error);
  if (status != RankStatus::kOk) return status;
  RankStatus over = RankStatus::kOk;
  if (way.AwaitInputs(call, &over) != Awaited::kDone) {
    return health_.FailOver(over, NameOf(tensor), error);
  }
  CompleteRound complete{.round = call.opened.round};
  status = way.Find(call, &complete, error);
  if (status != RankStatus::kOk) return status;
  status = parts_.SayLengths(tensor, complete, nullptr, bytes, error);
  if (status != RankStatus::kOk) return status;
  return way.Show(call, complete, *bytes, data, error);
}

uint64_t Rounds::RanksSummed(const RankTensor& tensor) const {
  const TensorState& state = states_.Of(tensor);
  {
    const MutexLock lock(state_mutex_);
    if (tensor.disagreed != 0 && tensor.disagreed == tensor.taken) return 0;
    if (state.completed_round.load(std::memory_order_acquire) < tensor.taken) {
      return identity_.local_size;  // The ranks have seen the round complete.
    }
    if (const std::optional<GoodRound> good = states_.Good(tensor, tensor.taken)) {
      return good->ranks_summed;
    }
  }
  if (state.status.load(std::memory_order_relaxed) != 0) return 0;
  return state.ranks_summed.load(std::memory_order_relaxed);
}

uint64_t Rounds::LeftOutCount(const RankTensor& tensor) const {
  const MutexLock lock(state_mutex_);
  return tensor.left_out_count;
}

uint64_t Rounds::OpenRound(const RankTensor& tensor) const {
  const MutexLock lock(state_mutex_);
  return tensor.pushed > tensor.taken ? tensor.pushed : 0;
}

}  // namespace talweg::shm
