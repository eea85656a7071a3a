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

RankStatus Client::Push(uint32_t index, const void* data, const PushedParts& parts,
                        bool declared_priority, int32_t priority, int64_t timeout_ns,
                        uint64_t* round, ErrorText& error) {
  if (Forked()) return FailForked(error);
  Tensor* tensor = Find(index);
  if (tensor == nullptr) return FailNoTensor(index, error);
  Pushing push{.entry = {.tensor = index, .priority = priority}};
  if (const RankStatus status = CheckParts(*tensor, parts, &push, error);
      status != RankStatus::kOk) {
    return status;
  }
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
  const bool says_more = push.is_short || parts.signature != 0;
  if (!nobody_sums) {
    if (data != nullptr && data != contribution) {
      CopyIn(*tensor, static_cast<const std::byte*>(data), parts.lengths, contribution);
    }
    // An older agent knows neither; it compares nothing.
    if (says_more && agent_minor_ >= kCollectivesMinor) {
      push.entry.flags = kPushInParts;
      push.entry.device_offset = parts.signature;
      SayParts(*tensor, parts.lengths);
    }
  }
  return FinishPush(*tensor, push, declared_priority, timeout_ns, round, error);
}

RankStatus Client::CheckParts(const Tensor& tensor, const PushedParts& parts, Pushing* push,
                              ErrorText& error) {
  const BufferShape& shape = tensor.buffer;
  push->bytes = tensor.gives.count * shape.part_bytes;
  if (parts.lengths == nullptr) return RankStatus::kOk;
  push->bytes = 0;
  for (uint32_t i = 0; i < tensor.gives.count; ++i) {
    const uint64_t bytes = parts.lengths[i];
    if (!shape.IsLength(bytes)) {
      return error.Fail(RankStatus::kInvalidArgument,
                        "tensor '%s': %llu bytes as number %u of the %u parts that this rank "
                        "gives; a part has at most %llu bytes, in elements of %u",
                        NameOf(tensor), static_cast<unsigned long long>(bytes), i,
                        tensor.gives.count, static_cast<unsigned long long>(shape.part_bytes),
                        shape.element_bytes);
    }
    push->bytes += bytes;
    push->is_short = push->is_short || bytes != shape.part_bytes;
  }
  if (!push->is_short || tensor.has_tables) return RankStatus::kOk;
  return error.Fail(RankStatus::kUnsupported,
                    "tensor '%s': a part that is not full, which %s; push full parts",
                    NameOf(tensor),
                    shape.has_lengths() ? "the agent's release does not know"
                                        : "a tensor with parts of 4 GiB or more cannot have");
}

void Client::CopyIn(const Tensor& tensor, const std::byte* data, const uint64_t* lengths,
                    std::byte* contribution) {
  uint64_t copied = 0;
  for (uint32_t i = 0; i < tensor.gives.count; ++i) {
    const uint64_t bytes = lengths == nullptr ? tensor.buffer.part_bytes : lengths[i];
    if (bytes == 0) continue;
    Copy(contribution + tensor.buffer.part_offset(tensor.gives[i]), data + copied, bytes,
         Streams(bytes));
    copied += bytes;
  }
  statistics_.bytes_copied.fetch_add(copied, std::memory_order_relaxed);
}

void Client::SayParts(Tensor& tensor, const uint64_t* lengths) {
  if (!tensor.has_tables) return;
  uint32_t* table = nullptr;
  {
    const MutexLock lock(state_mutex_);
    table = tensor.LengthsOf(tensor.pushed + 1);
  }
  for (uint32_t i = 0; i < tensor.gives.count; ++i) {
    table[tensor.gives[i]] =
        static_cast<uint32_t>(lengths == nullptr ? tensor.buffer.part_bytes : lengths[i]);
  }
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

RankStatus Client::FinishPush(Tensor& tensor, Pushing push, bool declared_priority,
                              int64_t timeout_ns, uint64_t* round, ErrorText& error) {
  if (declared_priority) push.entry.priority = tensor.priority.load(std::memory_order_relaxed);
  const RankStatus status = RingPush(tensor, push, Deadline(timeout_ns), round, error);
  if (status != RankStatus::kOk) {
    AbandonPush(tensor);
    return status;
  }
  statistics_.pushes.fetch_add(1, std::memory_order_relaxed);
  statistics_.bytes_pushed.fetch_add(push.bytes, std::memory_order_relaxed);
  // Where the ranks sum nobody needs the push before somebody waits, for it or for room.
  const bool waits = tensor.ranks_sum && !RingFills();
  RingDoorbell(waits ? Sleeping::kUntilRung : Sleeping::kAnyhow);
  return RankStatus::kOk;
}

RankStatus Client::RingPush(Tensor& tensor, Pushing push, const Deadline& deadline, uint64_t* round,
                            ErrorText& error) {
  RingEntry& entry = push.entry;
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
          tensor.on_device = (entry.flags & kPushOnDevice) != 0;
          tensor.pushed_short = push.is_short;
          tensor.pushed_at.store(tensor.placed_at, std::memory_order_relaxed);
          if ((entry.flags & kPushAgain) == 0) ++tensor.pushed;
          *round = tensor.pushed;
          if (tensor.tells_pushes()) {
            line =
                reinterpret_cast<PushedLine*>(tensor.contribution + tensor.shape.pushed_offset());
          }
        }
        entry.round = *round;
        if (line != nullptr && tensor.shape.has_tables) {
          line->signature[*round & 1] = entry.flags == kPushInParts ? entry.device_offset : 0;
          line->has_lengths[*round & 1] = push.is_short ? 1 : 0;
        }
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

RankStatus Client::Wait(uint32_t index, uint64_t round, const Taking& taking, int64_t timeout_ns,
                        ErrorText& error) {
  if (Forked()) return FailForked(error);
  Tensor* tensor = Find(index);
  if (tensor == nullptr) return FailNoTensor(index, error);
  const std::atomic<uint64_t>& completed = control_.tensor_state(index).completed_round;
  const int64_t begin_ns = MonotonicNs();
  statistics_.waits.fetch_add(1, std::memory_order_relaxed);
  bool on_device = false;
  bool is_short = false;
  bool compares = false;
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
    compares = tensor->tells_pushes() && tensor->shape.has_tables;
    others = FindPushedRounds(*tensor);
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
  const auto ended = [&] { return complete() || (on_device && LostItsEvents(*tensor)); };
  ArrivingResult arriving = Arriving(*tensor, round, taking, is_short);
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
  const bool reads = taking.NeedsLengths() || in_place;
  if (awaited == Awaited::kDone && tensor->ranks_sum && (reads || compares) &&
      RoundSucceeded(index, round)) {
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
      status = RoundStatus(index, *tensor, round, error);
      if (status != RankStatus::kOk) break;
      status = TakeRound(*tensor, {.round = round, .is_short = is_short, .compares = compares},
                         taking, in_place, on_device, arriving, deadline, &ending, error);
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
  if (ending.ranks_disagree) tensor->disagreed = round;
  if (ending.is_taken) EndRound(index, *tensor, round);
  return status;
}

void Client::EndRound(uint32_t index, Tensor& tensor, uint64_t round) {
  if (tensor.taken < round) {
    tensor.taken = round;
    open_bytes_.End(tensor.open_bytes);
    tensor.open_bytes = 0;
  }
  if (RoundSucceeded(index, round)) return;
  const TensorState& state = control_.tensor_state(index);
  if (state.goes_on.load(std::memory_order_relaxed) == 0) tensor.failed = true;
}

RankStatus Client::TakeRound(Tensor& tensor, const OpenedRound& opened, const Taking& taking,
                             bool in_place, bool on_device, ArrivingResult& arriving,
                             const Deadline& deadline, Ending* ending, ErrorText& error) {
  const bool reads = taking.NeedsLengths() || in_place;
  CompleteRound complete{.round = opened.round};
  if (!on_device && (reads || opened.compares)) {
    const RankStatus found = FindRound(tensor, opened, &complete, error);
    ending->ranks_disagree = found == RankStatus::kMismatch;
    if (found != RankStatus::kOk) return found;
  } else {
    complete.lengths = RoundLengths(tensor.buffer);
  }
  uint64_t bytes = 0;
  if (reads) {
    const RankStatus said = SayLengths(tensor, complete, taking.lengths, &bytes, error);
    if (said != RankStatus::kOk) return said;
  }
  ending->is_taken = taking.takes;
  const bool goes_in_place = in_place && taking.out == nullptr;
  if (!taking.takes || on_device) return RankStatus::kOk;
  if (bytes > taking.out_bytes && !goes_in_place) {
    ending->is_taken = false;
    return error.Fail(RankStatus::kInvalidArgument,
                      "tensor '%s': round %llu has %llu bytes for this rank, and there is room for "
                      "%llu; the round stays open, wait again with more",
                      NameOf(tensor), static_cast<unsigned long long>(opened.round),
                      static_cast<unsigned long long>(bytes),
                      static_cast<unsigned long long>(taking.out_bytes));
  }
  if (taking.out == nullptr && !goes_in_place) return RankStatus::kOk;
  const RankStatus status =
      TakeResult(tensor, complete, in_place, taking.out, bytes, arriving, deadline, error);
  // Other ranks have not done their pieces of it.
  if (status == RankStatus::kTimeout) ending->is_taken = false;
  return status;
}

ArrivingResult Client::Arriving(const Tensor& tensor, uint64_t round, const Taking& taking,
                                bool is_short) const {
  // What a contribution is overwritten with cannot be contributed again, should that be needed; and
  // what a broadcast that is aborted would have replaced is of use still.
  if (tensor.arrivals == nullptr || tensor.ranks_sum || taking.out == nullptr || !taking.takes ||
      taking.out_bytes < tensor.bytes ||
      Overlap(tensor.contribution, tensor.bytes, taking.out, tensor.bytes) ||
      tensor.collective.copies()) {
    return {};
  }
  // They tell of the tensor as a whole.
  if (is_short || tensor.buffer.part_count != 1 || tensor.gets.count != 1) return {};
  return {tensor.arrivals,
          tensor.bytes,
          round,
          tensor.result[round & 1],
          static_cast<std::byte*>(taking.out),
          Streams(tensor.bytes)};
}

RankStatus Client::FindRound(const Tensor& tensor, const OpenedRound& opened,
                             CompleteRound* complete, ErrorText& error) const {
  const bool is_reduction = !tensor.collective.copies();
  complete->lengths = RoundLengths(tensor.buffer);
  if (!tensor.ranks_sum) {
    // Of a reduction all ranks have pushed the same lengths, or it would not have come to this.
    if (tensor.has_tables && (opened.is_short || !is_reduction)) {
      complete->lengths = RoundLengths(
          tensor.buffer, reinterpret_cast<const uint32_t*>(tensor.result[opened.round & 1] +
                                                           tensor.buffer.table_offset()));
    }
    return RankStatus::kOk;
  }
  const RankStatus found = FindInputs(tensor, complete->arenas, error);
  if (found != RankStatus::kOk || !tensor.shape.has_tables) return found;
  if (is_reduction) {
    if (opened.is_short) {
      complete->lengths = RoundLengths(tensor.buffer, tensor.LengthsOf(opened.round));
    }
  } else {
    complete->lengths =
        RoundLengths(tensor.buffer, tensor.collective.gives, tensor.rank_count, tensor.root);
    for (uint32_t i = 0; i < tensor.rank_count; ++i) {
      complete->lengths.SetTable(i, PushedTable(tensor, *complete, i));
    }
  }
  return opened.compares ? CompareRanks(tensor, *complete, error) : RankStatus::kOk;
}

RankStatus Client::SayLengths(const Tensor& tensor, const CompleteRound& complete,
                              uint64_t* lengths, uint64_t* bytes, ErrorText& error) const {
  *bytes = 0;
  for (uint32_t i = 0; i < tensor.gets.count; ++i) {
    uint64_t length = 0;
    if (!complete.lengths.Get(tensor.gets[i], &length)) return FailLength(tensor, length, error);
    if (lengths != nullptr) lengths[i] = length;
    *bytes += length;
  }
  return RankStatus::kOk;
}

RankStatus Client::FailLength(const Tensor& tensor, uint64_t length, ErrorText& error) const {
  return error.Fail(RankStatus::kProtocol,
                    "tensor '%s': a part of its round is said to have %llu bytes, by the agent at "
                    "'%s' or another rank, which is no length of it; please report it",
                    NameOf(tensor), static_cast<unsigned long long>(length), socket_path_);
}

RankStatus Client::TakeResult(Tensor& tensor, const CompleteRound& complete, bool in_place,
                              void* out, uint64_t bytes, ArrivingResult& arriving,
                              const Deadline& deadline, ErrorText& error) {
  std::byte* const contribution = tensor.ContributionOf(complete.round);
  auto* to = static_cast<std::byte*>(in_place && out == nullptr ? contribution : out);
  if (tensor.shape.in_place) {
    const RankStatus status = SumInPlace(tensor, complete, bytes, deadline, error);
    if (status != RankStatus::kOk || to == contribution) return status;
    Copy(to, contribution, bytes, Streams(bytes));
  } else if (tensor.ranks_sum) {
    const RankStatus status = SumContributions(tensor, complete, to, bytes, error);
    if (status != RankStatus::kOk) return status;
  } else {
    if (arriving.Finish()) return RankStatus::kOk;
    const RankStatus status = CopyParts(tensor, complete, to, bytes, error);
    if (status != RankStatus::kOk) return status;
  }
  statistics_.bytes_copied.fetch_add(bytes, std::memory_order_relaxed);
  return RankStatus::kOk;
}

RankStatus Client::CopyParts(const Tensor& tensor, const CompleteRound& complete, std::byte* out,
                             uint64_t out_bytes, ErrorText& error) const {
  const Collective& collective = tensor.collective;
  uint64_t copied = 0;
  for (uint32_t i = 0; i < tensor.gets.count; ++i) {
    const uint32_t part = tensor.gets[i];
    uint64_t length = 0;
    // It may have been changed since they were added up.
    if (!complete.lengths.Get(part, &length) || length > out_bytes - copied) {
      return FailLength(tensor, length, error);
    }
    if (length == 0) continue;
    const std::byte* from = tensor.result[complete.round & 1];
    if (tensor.ranks_sum) {
      const uint32_t giver = GiverOf(collective.gives, part, tensor.rank_count, tensor.root);
      from = complete.arenas[giver] + tensor.shape.buffer_offset(complete.round);
    }
    Copy(out + copied, from + tensor.buffer.part_offset(part), length, Streams(length));
    copied += length;
  }
  return RankStatus::kOk;
}

RankStatus Client::Result(uint32_t index, uint64_t round, const void** data, uint64_t* bytes,
                          ErrorText& error) {
  if (Forked()) return FailForked(error);
  Tensor* tensor = Find(index);
  if (tensor == nullptr) return FailNoTensor(index, error);
  OpenedRound opened{.round = round};
  {
    const MutexLock lock(state_mutex_);
    if (round == 0 || tensor->taken != round || tensor->pushed != round) {
      return error.Fail(RankStatus::kInvalidArgument,
                        "tensor '%s': round %llu is not the one that was waited for last (%llu)",
                        NameOf(*tensor), static_cast<unsigned long long>(round),
                        static_cast<unsigned long long>(tensor->taken));
    }
    if (tensor->on_device) return FailOnDevice(*tensor, error);
    if (tensor->gets.count > 1) {
      return error.Fail(RankStatus::kInvalidArgument,
                        "tensor '%s': this rank gets %u parts, which do not lie one after another; "
                        "have them copied (talweg_wait_parts)",
                        NameOf(*tensor), tensor->gets.count);
    }
    opened.is_short = tensor->pushed_short;
    opened.compares = tensor->tells_pushes() && tensor->shape.has_tables;
    ++tensor->readers;  // From here on a push is kBusy, as in Wait.
  }
  RankStatus status = RoundStatus(index, *tensor, round, error);
  if (status == RankStatus::kOk && tensor->ranks_sum) {
    RankStatus over = RankStatus::kOk;
    if (AwaitContributions(*tensor, Deadline(-1), &over) != Awaited::kDone) {
      status = FailOver(over, NameOf(*tensor), error);
    }
  }
  CompleteRound complete{.round = round};
  if (status == RankStatus::kOk) status = FindRound(*tensor, opened, &complete, error);
  if (status == RankStatus::kOk) status = SayLengths(*tensor, complete, nullptr, bytes, error);
  if (status == RankStatus::kOk) {
    if (tensor->shape.in_place) {
      *data = tensor->ContributionOf(round);
    } else if (tensor->ranks_sum) {
      status = SumIntoOwnResult(*tensor, complete, *bytes, data, error);
    } else {
      *data = tensor->result[round & 1] + tensor->buffer.part_offset(tensor->gets.first);
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
    if (tensor->disagreed != 0 && tensor->disagreed == tensor->taken) return 0;
    if (state.completed_round.load(std::memory_order_acquire) < tensor->taken) {
      return identity_.local_size;  // The ranks have seen it complete.
    }
  }
  if (state.status.load(std::memory_order_relaxed) != 0) return 0;
  return state.ranks_summed.load(std::memory_order_relaxed);
}

uint64_t Client::OpenRound(uint32_t index) const {
  const Tensor* tensor = Forked() ? nullptr : Find(index);
  if (tensor == nullptr) return 0;
  const MutexLock lock(state_mutex_);
  return tensor->pushed > tensor->taken ? tensor->pushed : 0;
}

}  // namespace talweg::shm
