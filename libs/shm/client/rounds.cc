// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "libs/shm/client/await.h"
#include "libs/shm/client/client.h"
#include "libs/shm/client/stream_copy.h"

namespace talweg::shm {
namespace {

// Copies the text of a failed round, if it is still there. Returns its length.
size_t CopyText(const ControlView& control, uint64_t ticket, char* out) {
  out[0] = '\0';
  if (ticket == 0) return 0;
  const TextSlot& slot = control.text_slot(ticket);
  if (slot.ticket.load(std::memory_order_acquire) != ticket) return 0;
  for (size_t i = 0; i < kTextSlotWords; ++i) {
    const uint64_t word = slot.words[i].load(std::memory_order_acquire);
    std::memcpy(out + i * 8, &word, 8);
  }
  out[kTextSlotBytes] = '\0';
  if (slot.ticket.load(std::memory_order_relaxed) != ticket) out[0] = '\0';
  return std::strlen(out);
}

}  // namespace

RankStatus Client::Push(uint32_t index, const void* data, bool declared_priority, int32_t priority,
                        int64_t timeout_ns, uint64_t* round, ErrorText& error) {
  if (Forked()) return FailForked(error);
  Tensor* tensor = Find(index);
  if (tensor == nullptr) return FailNoTensor(index, error);
  std::byte* contribution = nullptr;
  bool nobody_sums = false;
  if (const RankStatus begun = BeginPush(*tensor, data, &contribution, &nobody_sums, error);
      begun != RankStatus::kOk) {
    return begun;
  }
  if (contribution == nullptr) {
    AbandonPush(*tensor);
    return error.Fail(RankStatus::kInvalidArgument,
                      "tensor '%s' was declared on a GPU and has no buffer in host memory; push it "
                      "from there, or declare it in host memory as well",
                      NameOf(*tensor));
  }
  if (nobody_sums) data = nullptr;
  if (data != nullptr && data != contribution) {
    Copy(contribution, data, tensor->bytes, Streams(tensor->bytes));
    statistics_.bytes_copied.fetch_add(tensor->bytes, std::memory_order_relaxed);
  }
  return FinishPush(*tensor, {.tensor = index, .priority = priority}, declared_priority, timeout_ns,
                    round, error);
}

RankStatus Client::BeginPush(Tensor& tensor, const void* data, std::byte** contribution,
                             bool* nobody_sums, ErrorText& error) {
  RankStatus over = RankStatus::kOk;
  if (Over(&over)) return FailOver(over, NameOf(tensor), error);
  const MutexLock lock(state_mutex_);
  if (tensor.pushing || tensor.pushed > tensor.taken || tensor.readers > 0) {
    return error.Fail(RankStatus::kBusy,
                      "tensor '%s': its round %llu has not been taken yet; wait for it before the "
                      "next push",
                      NameOf(tensor),
                      static_cast<unsigned long long>(tensor.pushed + (tensor.pushing ? 1 : 0)));
  }
  tensor.pushing = true;
  // Nobody will sum it; and the buffer may still be read for the last round that was.
  *nobody_sums = tensor.failed && tensor.ranks_sum;
  *contribution = tensor.ContributionOf(tensor.pushed + 1);
  const uint64_t buffers = tensor.contribution == nullptr ? 0 : tensor.shape.in_place ? 1 : 2;
  const bool copied = data != nullptr && data != *contribution;
  tensor.open_bytes = (buffers + (copied ? 1 : 0)) * tensor.bytes;
  open_bytes_.Begin(tensor.open_bytes);
  return RankStatus::kOk;
}

void Client::AbandonPush(Tensor& tensor) {
  const MutexLock lock(state_mutex_);
  tensor.pushing = false;
  if (tensor.pushed > tensor.taken) return;  // A push again: its round stays open.
  open_bytes_.End(tensor.open_bytes);
  tensor.open_bytes = 0;
}

RankStatus Client::FinishPush(Tensor& tensor, RingEntry entry, bool declared_priority,
                              int64_t timeout_ns, uint64_t* round, ErrorText& error) {
  if (declared_priority) entry.priority = tensor.priority.load(std::memory_order_relaxed);
  const RankStatus status = RingPush(tensor, entry, Deadline(timeout_ns), round, error);
  if (status != RankStatus::kOk) {
    AbandonPush(tensor);
    return status;
  }
  statistics_.pushes.fetch_add(1, std::memory_order_relaxed);
  statistics_.bytes_pushed.fetch_add(tensor.bytes, std::memory_order_relaxed);
  // Where the ranks sum nobody needs the push before somebody waits, for it or for room.
  const bool waits = tensor.ranks_sum && entry.flags == 0 && !RingFills();
  RingDoorbell(waits ? Sleeping::kUntilRung : Sleeping::kAnyhow);
  return RankStatus::kOk;
}

RankStatus Client::RingPush(Tensor& tensor, RingEntry entry, const Deadline& deadline,
                            uint64_t* round, ErrorText& error) {
  const uint32_t capacity = control_.shape().ring_capacity;
  const auto room = [&] { return RingEntries() < capacity; };
  for (bool waited = false;; waited = true) {
    {
      const MutexLock lock(ring_mutex_);
      if (room()) {
        const uint64_t sequence = submitted_.load(std::memory_order_relaxed);
        PushedLine* line = nullptr;
        {
          const MutexLock state_lock(state_mutex_);
          tensor.pushing = false;
          tensor.on_device = entry.flags != 0;
          tensor.pushed_at.store(tensor.placed_at, std::memory_order_relaxed);
          if ((entry.flags & kPushAgain) == 0) ++tensor.pushed;
          *round = tensor.pushed;
          if (tensor.tells_pushes()) {
            line =
                reinterpret_cast<PushedLine*>(tensor.contribution + tensor.shape.pushed_offset());
          }
        }
        entry.round = *round;
        control_.ring_entry(sequence) = entry;
        submitted_.store(sequence + 1, std::memory_order_relaxed);
        // Sequentially consistent: the agent that goes to sleep sees it, or RingDoorbell sees that
        // it sleeps.
        control_.rank_line().submitted.store(sequence + 1, std::memory_order_seq_cst);
        // Behind it: what another rank has seen here the agent finds there.
        if (line != nullptr) line->round.store(*round, std::memory_order_release);
        return RankStatus::kOk;
      }
    }
    if (!waited) statistics_.ring_full.fetch_add(1, std::memory_order_relaxed);
    RankStatus over = RankStatus::kOk;
    switch (Await(room, deadline, {control_.rank_line().push_waiters}, &over)) {
      case Awaited::kDone: break;
      case Awaited::kOver: return FailOver(over, NameOf(tensor), error);
      case Awaited::kTimeout:
        return error.Fail(
            RankStatus::kTimeout,
            "tensor '%s': the agent has not taken the %u pushes before this one in time; "
            "nothing was pushed",
            NameOf(tensor), capacity);
    }
  }
}

void Client::RingDoorbell(Sleeping sleeping) {
  const AgentLine& line = control_.agent_line();
  const uint32_t sleep = line.sleep_sequence.load(std::memory_order_seq_cst);
  if (sleeping != Sleeping::kAnyhow) {
    const bool until_awaited = line.sleeps_until_awaited.load(std::memory_order_seq_cst) == sleep;
    if (until_awaited != (sleeping == Sleeping::kUntilAwaited)) return;
  }
  // One ring for each of its sleeps. If the socket is full the agent has something to read anyway.
  if ((sleep & 1) != 0 && rung_.exchange(sleep, std::memory_order_relaxed) != sleep) {
    socket_.Send({.body = Doorbell{}});
  }
}

void Client::RingForPoll(bool needs_agent) {
  const int64_t now_ns = MonotonicNs();
  const int64_t every_ns = needs_agent ? kPollRingsEveryNs : kLookEveryNs;
  if (now_ns - poll_rang_ns_.load(std::memory_order_relaxed) < every_ns) return;
  poll_rang_ns_.store(now_ns, std::memory_order_relaxed);
  RingDoorbell(Sleeping::kUntilAwaited);
}

RankStatus Client::RoundStatus(uint32_t index, const Tensor& tensor, uint64_t round,
                               ErrorText& error) const {
  if (RoundSucceeded(index, round)) return RankStatus::kOk;
  const TensorState& state = control_.tensor_state(index);
  const uint32_t value = state.status.load(std::memory_order_relaxed);
  const auto status =
      value < kRankStatusCount ? static_cast<RankStatus>(value) : RankStatus::kInternal;
  char text[kTextSlotBytes + 1];
  const size_t bytes = CopyText(control_, state.text_ticket.load(std::memory_order_relaxed), text);
  return error.Fail(status, "tensor '%s', round %llu: %s", NameOf(tensor),
                    static_cast<unsigned long long>(round),
                    bytes > 0 ? text : RankStatusName(status));
}

RankStatus Client::FailOnDevice(const Tensor& tensor, ErrorText& error) {
  return error.Fail(RankStatus::kInvalidArgument,
                    "tensor '%s' was pushed from a GPU, where its result is: there is none in host "
                    "memory; wait without `out`",
                    NameOf(tensor));
}

RankStatus Client::Poll(uint32_t index, uint64_t round, ErrorText& error) {
  if (Forked()) return FailForked(error);
  Tensor* tensor = Find(index);
  if (tensor == nullptr) return FailNoTensor(index, error);
  bool on_device = false;
  PushedRounds others;
  {
    const MutexLock lock(state_mutex_);
    if (round == 0 || round > tensor->pushed) {
      return error.Fail(RankStatus::kInvalidArgument,
                        "tensor '%s': round %llu has not been pushed; the last one is %llu",
                        NameOf(*tensor), static_cast<unsigned long long>(round),
                        static_cast<unsigned long long>(tensor->pushed));
    }
    on_device = tensor->on_device;
    others = FindPushedRounds(*tensor);
  }
  const std::atomic<uint64_t>& completed = control_.tensor_state(index).completed_round;
  const auto done = [&] {
    return completed.load(std::memory_order_seq_cst) >= round || others.AllReach(round);
  };
  if (done()) return RankStatus::kOk;
  RingForPoll(!others.visible());
  ReadSocket(kLookEveryNs);
  RankStatus over = RankStatus::kOk;
  switch (Look(done, &over)) {
    case Awaited::kDone: return RankStatus::kOk;
    case Awaited::kOver: return FailOver(over, NameOf(*tensor), error);
    case Awaited::kTimeout: break;
  }
  if (on_device && LostItsEvents(*tensor)) return FailEventsLost(*tensor, error);
  return RankStatus::kPending;
}

RankStatus Client::Wait(uint32_t index, uint64_t round, void* out, bool again, int64_t timeout_ns,
                        ErrorText& error) {
  if (Forked()) return FailForked(error);
  Tensor* tensor = Find(index);
  if (tensor == nullptr) return FailNoTensor(index, error);
  const std::atomic<uint64_t>& completed = control_.tensor_state(index).completed_round;
  const int64_t begin_ns = MonotonicNs();
  statistics_.waits.fetch_add(1, std::memory_order_relaxed);
  bool on_device = false;
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
    if (on_device && out != nullptr) return FailOnDevice(*tensor, error);
    others = FindPushedRounds(*tensor);
    // Two waits for one round: the second must not lose its result to a push after the first. From
    // here on a push is kBusy.
    ++tensor->readers;
    if (again) copied_early = tensor->copied_early;
    tensor->copied_early = {};
  }
  RankStatus over = RankStatus::kOk;
  const Deadline deadline(timeout_ns);
  const auto complete = [&] {
    return completed.load(std::memory_order_seq_cst) >= round || others.AllReach(round);
  };
  const auto ended = [&] { return complete() || (on_device && LostItsEvents(*tensor)); };
  ArrivingResult arriving = Arriving(*tensor, round, out);
  arriving.GoOnBehind(copied_early);
  const bool only_looks = timeout_ns == 0;  // And has no time to copy what is not all of it.
  Awaited awaited = Awaited::kTimeout;
  while (awaited == Awaited::kTimeout) {
    awaited = Await([&] { return ended() || (!only_looks && arriving.Ready()); }, deadline,
                    {control_.rank_line().waiters, index, only_looks ? 0 : arriving.awaited_bytes(),
                     !others.visible()},
                    &over);
    if (awaited != Awaited::kDone || ended()) break;
    arriving.CopyNew();
    awaited = Look(ended, &over);
    if (deadline.Passed(MonotonicNs())) break;
  }
  const bool events_lost = awaited == Awaited::kDone && !complete();
  const bool in_place =
      !on_device && (tensor->shape.in_place || tensor->in_place.load(std::memory_order_relaxed));
  if (awaited == Awaited::kDone && tensor->ranks_sum && (out != nullptr || in_place) &&
      RoundSucceeded(index, round)) {
    awaited = AwaitContributions(*tensor, deadline, &over);
  }
  statistics_.wait_ns.fetch_add(static_cast<uint64_t>(MonotonicNs() - begin_ns),
                                std::memory_order_relaxed);
  RankStatus status = RankStatus::kOk;
  bool is_taken = false;
  switch (awaited) {
    case Awaited::kDone:
      status =
          events_lost ? FailEventsLost(*tensor, error) : RoundStatus(index, *tensor, round, error);
      if (status == RankStatus::kOk && (out != nullptr || in_place)) {
        status = TakeResult(*tensor, round, in_place, out, arriving, deadline, error);
      }
      // Other ranks have not done their pieces of it.
      is_taken = !events_lost && status != RankStatus::kTimeout;
      break;
    case Awaited::kOver: status = FailOver(over, NameOf(*tensor), error); break;
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
  if (others.visible()) ReadSocket(kLookEveryNs);
  const MutexLock lock(state_mutex_);
  --tensor->readers;
  if (awaited == Awaited::kTimeout) tensor->copied_early = arriving.copied();
  if (is_taken) {
    if (tensor->taken < round) {
      tensor->taken = round;
      open_bytes_.End(tensor->open_bytes);
      tensor->open_bytes = 0;
    }
    if (!RoundSucceeded(index, round)) tensor->failed = true;
  }
  return status;
}

ArrivingResult Client::Arriving(const Tensor& tensor, uint64_t round, void* out) const {
  // What a contribution is overwritten with cannot be contributed again, should that be needed; and
  // what a broadcast that is aborted would have replaced is of use still.
  if (tensor.arrivals == nullptr || tensor.ranks_sum || out == nullptr ||
      Overlap(tensor.contribution, out, tensor.bytes) ||
      tensor.op.load(std::memory_order_relaxed) == Op::kCopy) {
    return {};
  }
  return {tensor.arrivals,
          tensor.bytes,
          round,
          tensor.result[round & 1],
          static_cast<std::byte*>(out),
          Streams(tensor.bytes)};
}

RankStatus Client::TakeResult(Tensor& tensor, uint64_t round, bool in_place, void* out,
                              ArrivingResult& arriving, const Deadline& deadline,
                              ErrorText& error) {
  std::byte* const contribution = tensor.ContributionOf(round);
  const std::byte* result = tensor.result[round & 1];
  if (in_place && out == nullptr) out = contribution;
  if (tensor.ranks_sum) {
    if (!tensor.shape.in_place) {
      statistics_.bytes_copied.fetch_add(tensor.bytes, std::memory_order_relaxed);
      return SumContributions(tensor, round, static_cast<std::byte*>(out), error);
    }
    const RankStatus status = SumInPlace(tensor, round, deadline, error);
    if (status != RankStatus::kOk || out == contribution) return status;
    result = contribution;
  }
  if (arriving.Finish()) return RankStatus::kOk;
  Copy(out, result, tensor.bytes, Streams(tensor.bytes));
  statistics_.bytes_copied.fetch_add(tensor.bytes, std::memory_order_relaxed);
  return RankStatus::kOk;
}

RankStatus Client::Result(uint32_t index, uint64_t round, const void** data, uint64_t* bytes,
                          ErrorText& error) {
  if (Forked()) return FailForked(error);
  Tensor* tensor = Find(index);
  if (tensor == nullptr) return FailNoTensor(index, error);
  {
    const MutexLock lock(state_mutex_);
    if (round == 0 || tensor->taken != round || tensor->pushed != round) {
      return error.Fail(RankStatus::kInvalidArgument,
                        "tensor '%s': round %llu is not the one that was waited for last (%llu)",
                        NameOf(*tensor), static_cast<unsigned long long>(round),
                        static_cast<unsigned long long>(tensor->taken));
    }
    if (tensor->on_device) return FailOnDevice(*tensor, error);
    ++tensor->readers;  // From here on a push is kBusy, as in Wait.
  }
  RankStatus status = RoundStatus(index, *tensor, round, error);
  if (status == RankStatus::kOk) {
    *bytes = tensor->bytes;
    if (tensor->shape.in_place) {
      *data = tensor->ContributionOf(round);
    } else if (tensor->ranks_sum) {
      RankStatus over = RankStatus::kOk;
      status = AwaitContributions(*tensor, Deadline(-1), &over) == Awaited::kDone
                   ? SumIntoOwnResult(*tensor, round, data, error)
                   : FailOver(over, NameOf(*tensor), error);
    } else {
      *data = tensor->result[round & 1];
    }
  }
  const MutexLock lock(state_mutex_);
  --tensor->readers;
  return status;
}

Client::Awaited Client::AwaitContributions(const Tensor& tensor, const Deadline& deadline,
                                           RankStatus* over) {
  std::byte* arenas[kSummingRanksMax];
  if (FindArenas(tensor, arenas)) return Awaited::kDone;
  // They came before the round was complete: a look at the socket usually is enough.
  ReadSocket(0);
  return Await([&] { return FindArenas(tensor, arenas); }, deadline, {uncounted_}, over);
}

bool Client::RoundSucceeded(uint32_t index, uint64_t round) const {
  const TensorState& state = control_.tensor_state(index);
  // What the ranks have seen complete before the agent has all of them.
  return state.completed_round.load(std::memory_order_acquire) < round ||
         state.status.load(std::memory_order_relaxed) == 0;
}

uint64_t Client::RanksSummed(uint32_t index) const {
  const Tensor* tensor = Forked() ? nullptr : Find(index);
  if (tensor == nullptr) return 0;
  const TensorState& state = control_.tensor_state(index);
  {
    const MutexLock lock(state_mutex_);
    if (state.completed_round.load(std::memory_order_acquire) < tensor->taken) {
      return identity_.local_size;  // The ranks have seen it complete.
    }
  }
  return state.ranks_summed.load(std::memory_order_relaxed);
}

uint64_t Client::OpenRound(uint32_t index) const {
  const Tensor* tensor = Forked() ? nullptr : Find(index);
  if (tensor == nullptr) return 0;
  const MutexLock lock(state_mutex_);
  return tensor->pushed > tensor->taken ? tensor->pushed : 0;
}

}  // namespace talweg::shm
