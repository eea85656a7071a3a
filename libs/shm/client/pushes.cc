// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/pushes.h"

#include "libs/base/dtype.h"
#include "libs/reduce/reduce.h"
#include "libs/shm/client/deadline.h"
#include "libs/shm/client/stream_copy.h"
#include "libs/shm/layout/messages.h"
#include "libs/shm/layout/rank_sums.h"

namespace talweg::shm {
namespace {

// Calls `visit(part, from, bytes)` for each part that a rank gives and that has bytes.
template <typename Visit>
void ForEachGiven(const Parts& gives, const BufferShape& shape, const std::byte* data,
                  const PushedParts& parts, const Visit& visit) {
  uint64_t before = 0;
  for (uint32_t i = 0; i < gives.count; ++i) {
    const uint64_t bytes = parts.lengths == nullptr ? shape.part_bytes : parts.lengths[i];
    const auto* from =
        parts.places == nullptr ? data + before : static_cast<const std::byte*>(parts.places[i]);
    before += bytes;
    if (bytes > 0) visit(gives[i], from, bytes);
  }
}

}  // namespace

void* Pushes::Contribution(const RankTensor& tensor) const {
  const MutexLock lock(state_mutex_);
  // If there are several parts, part p lies p strides from this address, even if only the rank's
  // own parts have room.
  return reinterpret_cast<void*>(
      reinterpret_cast<uintptr_t>(tensor.ContributionOf(tensor.pushed + 1)) -
      tensor.bytes_before());
}

RankStatus Pushes::Push(RankTensor& tensor, const void* data, const PushedParts& parts,
                        bool declared_priority, int32_t priority, int64_t timeout_ns,
                        uint64_t* round, ErrorText& error) {
  Pushing push{.entry = {.tensor = tensor.index, .priority = priority}};
  if (const RankStatus status = CheckParts(tensor, parts, &push, error);
      status != RankStatus::kOk) {
    return status;
  }
  std::byte* contribution = nullptr;
  bool nobody_sums = false;
  const void* const given = parts.places != nullptr ? parts.places : data;
  int64_t ring_timeout_ns = timeout_ns;
  if (const RankStatus begun = Begin(tensor, given, &contribution, &nobody_sums, error);
      begun != RankStatus::kOk) {
    return begun;
  }
  if (contribution == nullptr) {
    Abandon(tensor);
    return error.Fail(RankStatus::kInvalidArgument,
                      "tensor '%s' was declared on a GPU and has no buffer in host memory; push it "
                      "from there, or declare it in host memory as well",
                      NameOf(tensor));
  }
  const bool says_more = push.is_short || parts.signature != 0;
  if (tensor.collective.leaves_out()) {
    if (const RankStatus fits = CheckMayLeaveOut(tensor, push, data, contribution, error);
        fits != RankStatus::kOk) {
      Abandon(tensor);
      return fits;
    }
  }
  if (tensor.carries) {  // Nobody changes it while the tensor is being pushed.
    const RankStatus added = AddIn(tensor, data, contribution, Deadline(timeout_ns), error);
    if (added != RankStatus::kOk) {
      Abandon(tensor);
      return added;
    }
    ring_timeout_ns = -1;  // What was added cannot be taken back.
  } else if (!nobody_sums) {
    if (given != nullptr && !IsContribution(tensor, given, contribution)) {
      push.own = OwnPlace(tensor, static_cast<const std::byte*>(data), parts);
      CopyIn(tensor, static_cast<const std::byte*>(data), parts, contribution, push.own);
    }
  }
  if (!nobody_sums) {
    // An older agent knows neither lengths nor signatures; it compares nothing.
    if (says_more && link_.minor() >= kCollectivesMinor) {
      push.entry.flags = kPushInParts;
      push.entry.device_offset = parts.signature;
      SayParts(tensor, parts.lengths);
    }
  }
  const RankStatus pushed = Finish(tensor, push, declared_priority, ring_timeout_ns, round, error);
  if (pushed == RankStatus::kOk && push.own != nullptr) {
    CopyOwn(tensor, static_cast<const std::byte*>(data), parts, push.own);
  }
  return pushed;
}

RankStatus Pushes::PushOnDevice(RankTensor& tensor, uint32_t buffer, uint64_t offset,
                                bool declared_priority, int32_t priority, int64_t timeout_ns,
                                uint64_t* round, ErrorText& error) {
  if (tensor.ranks_sum) {
    return error.Fail(RankStatus::kUnsupported,
                      "tensor '%s' was declared in host memory, where the ranks sum it; declare it "
                      "on a GPU first",
                      NameOf(tensor));
  }
  {
    const MutexLock lock(state_mutex_);
    if (tensor.placed_at != states_.EventsLost()) return FailEventsLost(tensor, error);
  }
  uint64_t flags = kPushOnDevice | uint64_t{buffer} << kPushBufferShift;
  std::byte* contribution = nullptr;
  bool nobody_sums = false;
  if (PushesAgain(tensor)) {
    flags |= kPushAgain;
  } else if (const RankStatus begun = Begin(tensor, nullptr, &contribution, &nobody_sums, error);
             begun != RankStatus::kOk) {
    return begun;
  }
  return Finish(tensor,
                {.entry = {.tensor = tensor.index,
                           .priority = priority,
                           .flags = flags,
                           .device_offset = offset},
                 .bytes = tensor.gives.count * tensor.buffer.part_bytes},
                declared_priority, timeout_ns, round, error);
}

bool Pushes::PushesAgain(RankTensor& tensor) {
  const MutexLock lock(state_mutex_);
  const bool again = !tensor.pushing && tensor.pushed > tensor.taken && tensor.on_device &&
                     tensor.pushed_at.load(std::memory_order_relaxed) != tensor.placed_at;
  if (again) tensor.pushing = true;
  return again;
}

bool Pushes::IsContribution(const RankTensor& tensor, const void* data,
                            const std::byte* contribution) {
  return reinterpret_cast<uintptr_t>(data) ==
         reinterpret_cast<uintptr_t>(contribution) - tensor.bytes_before();
}

RankStatus Pushes::CheckParts(const RankTensor& tensor, const PushedParts& parts, Pushing* push,
                              ErrorText& error) {
  const BufferShape& shape = tensor.buffer;
  push->bytes = tensor.gives.count * shape.part_bytes;
  if (parts.lengths == nullptr) return RankStatus::kOk;
  push->bytes = 0;
  for (uint32_t i = 0; i < tensor.gives.count; ++i) {
    const uint64_t bytes = parts.lengths[i];
    if (!shape.IsLength(bytes)) {
      return error.Fail(RankStatus::kInvalidArgument,
                        "tensor '%s': %llu byte%s as number %u of the %u part%s that this rank "
                        "gives; a part has at most %llu byte%s, in elements of %u",
                        NameOf(tensor), static_cast<unsigned long long>(bytes), PluralEnd(bytes), i,
                        tensor.gives.count, PluralEnd(tensor.gives.count),
                        static_cast<unsigned long long>(shape.part_bytes),
                        PluralEnd(shape.part_bytes), shape.element_bytes);
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

std::byte* Pushes::OwnPlace(const RankTensor& tensor, const std::byte* data,
                            const PushedParts& parts) {
  if (parts.own == nullptr || !tensor.ranks_sum || !tensor.collective.copies() ||
      tensor.shape.in_place) {
    return nullptr;
  }
  auto* const own = static_cast<std::byte*>(parts.own);
  uint64_t own_bytes = 0;
  ForEachGiven(tensor.gives, tensor.buffer, data, parts,
               [&](uint32_t part, const std::byte*, uint64_t bytes) {
                 if (tensor.Gets(part)) own_bytes = bytes;
               });
  bool overwrites = own_bytes == 0;
  ForEachGiven(tensor.gives, tensor.buffer, data, parts,
               [&](uint32_t part, const std::byte* from, uint64_t bytes) {
                 const bool is_there = tensor.Gets(part) && from == own;
                 overwrites = overwrites || (!is_there && Overlap(own, own_bytes, from, bytes));
               });
  return overwrites ? nullptr : own;
}

void Pushes::CopyIn(const RankTensor& tensor, const std::byte* data, const PushedParts& parts,
                    std::byte* contribution, std::byte* own) {
  const bool others_get_all = tensor.collective.all_get_all();
  uint64_t copied = 0;
  ForEachGiven(tensor.gives, tensor.buffer, data, parts,
               [&](uint32_t part, const std::byte* from, uint64_t bytes) {
                 const bool is_own = own != nullptr && tensor.Gets(part);
                 if (is_own && !others_get_all) return;
                 std::byte* const to = contribution + tensor.PartOffset(part, tensor.rank);
                 if (is_own && own != from) {
                   CopyTwice(to, own, from, bytes, streaming_.Streams(bytes));
                   copied += bytes;
                 } else {
                   Copy(to, from, bytes, streaming_.Streams(bytes));
                 }
                 copied += bytes;
               });
  statistics_.bytes_copied.fetch_add(copied, std::memory_order_relaxed);
}

RankStatus Pushes::CheckMayLeaveOut(const RankTensor& tensor, const Pushing& push, const void* data,
                                    const std::byte* contribution, ErrorText& error) {
  if (data == nullptr || IsContribution(tensor, data, contribution)) {
    return error.Fail(RankStatus::kUnsupported,
                      "tensor '%s' leaves late ranks out, and its buffer keeps what was left out; "
                      "push from other memory",
                      NameOf(tensor));
  }
  if (!push.is_short) return RankStatus::kOk;
  return error.Fail(RankStatus::kUnsupported,
                    "tensor '%s' leaves late ranks out, so each round has all of its elements",
                    NameOf(tensor));
}

RankStatus Pushes::AddIn(RankTensor& tensor, const void* data, std::byte* contribution,
                         const Deadline& deadline, ErrorText& error) {
  if (const RankStatus room = AwaitRoom(tensor, deadline, error); room != RankStatus::kOk) {
    return room;
  }
  const std::byte* const inputs[] = {contribution, static_cast<const std::byte*>(data)};
  const Collective& collective = tensor.collective;
  reduce::Reduce({.dtype = collective.dtype, .op = Op::kSum}, inputs, contribution,
                 collective.element_count);
  return RankStatus::kOk;
}

void Pushes::CopyOwn(const RankTensor& tensor, const std::byte* data, const PushedParts& parts,
                     std::byte* own) {
  if (tensor.collective.all_get_all()) return;  // It went there with the other parts.
  ForEachGiven(tensor.gives, tensor.buffer, data, parts,
               [&](uint32_t part, const std::byte* from, uint64_t bytes) {
                 if (!tensor.Gets(part) || own == from) return;
                 Copy(own, from, bytes, streaming_.Streams(bytes));
                 statistics_.bytes_copied.fetch_add(bytes, std::memory_order_relaxed);
               });
}

void Pushes::SayParts(RankTensor& tensor, const uint64_t* lengths) {
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

RankStatus Pushes::Begin(RankTensor& tensor, const void* data, std::byte** contribution,
                         bool* nobody_sums, ErrorText& error) {
  RankStatus over = RankStatus::kOk;
  if (health_.Over(&over)) return health_.FailOver(over, NameOf(tensor), error);
  if (steps_.at_boundary() && !tensor.collective.side) {
    return error.Fail(RankStatus::kBusy,
                      "tensor '%s': this rank waits in talweg_end_step; what belongs to a step is "
                      "pushed before its end",
                      NameOf(tensor));
  }
  const MutexLock lock(state_mutex_);
  if (tensor.pushing || tensor.pushed > tensor.taken || tensor.readers > 0) {
    return error.Fail(RankStatus::kBusy,
                      "tensor '%s': its round %llu has not been taken yet; wait for it before the "
                      "next push",
                      NameOf(tensor),
                      static_cast<unsigned long long>(tensor.pushed + (tensor.pushing ? 1 : 0)));
  }
  tensor.pushing = true;
  // Nobody will sum this round, and the buffer may still be read for the last round that was
  // summed.
  *nobody_sums = tensor.failed && tensor.ranks_sum;
  *contribution = tensor.ContributionOf(tensor.pushed + 1);
  const uint64_t buffers = tensor.contribution == nullptr ? 0 : tensor.is_a_home() ? 1 : 2;
  const bool copied = data != nullptr && !IsContribution(tensor, data, *contribution);
  tensor.open_bytes = (buffers + (copied ? 1 : 0)) * tensor.held_bytes();
  streaming_.OpenRound(tensor.open_bytes);
  return RankStatus::kOk;
}

void Pushes::Abandon(RankTensor& tensor) {
  const MutexLock lock(state_mutex_);
  tensor.pushing = false;
  if (tensor.pushed > tensor.taken) return;  // A repeated push: its round stays open.
  streaming_.EndRound(tensor.open_bytes);
  tensor.open_bytes = 0;
}

RankStatus Pushes::Finish(RankTensor& tensor, Pushing push, bool declared_priority,
                          int64_t timeout_ns, uint64_t* round, ErrorText& error) {
  if (declared_priority) push.entry.priority = tensor.priority.load(std::memory_order_relaxed);
  const RankStatus status = RingPush(tensor, push, Deadline(timeout_ns), round, error);
  if (status != RankStatus::kOk) {
    Abandon(tensor);
    return status;
  }
  statistics_.pushes.fetch_add(1, std::memory_order_relaxed);
  statistics_.bytes_pushed.fetch_add(push.bytes, std::memory_order_relaxed);
  // If the ranks sum, nobody needs the push before a thread waits for it or for room.
  const bool waits = tensor.ranks_sum && !RingFills();
  bell_.Ring(waits ? AgentBell::Sleeping::kUntilRung : AgentBell::Sleeping::kAnyhow);
  return RankStatus::kOk;
}

RankStatus Pushes::RingPush(RankTensor& tensor, Pushing push, const Deadline& deadline,
                            uint64_t* round, ErrorText& error) {
  RingEntry& entry = push.entry;
  const uint32_t capacity = link_.control().shape().ring_capacity;
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
          tensor.carries = false;  // The wait for this round says it anew.
          tensor.own_part = push.own;
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
        link_.control().ring_entry(sequence) = entry;
        submitted_.store(sequence + 1, std::memory_order_relaxed);
        // Sequentially consistent: either an agent that goes to sleep sees it, or Ring sees that
        // the agent sleeps.
        link_.control().rank_line().submitted.store(sequence + 1, std::memory_order_seq_cst);
        // Stored after it: what another rank sees here, the agent finds in the ring.
        if (line != nullptr) line->round.store(*round, std::memory_order_release);
        return RankStatus::kOk;
      }
    }
    if (!waited) statistics_.ring_full.fetch_add(1, std::memory_order_relaxed);
    if (const RankStatus status = AwaitRoom(tensor, deadline, error); status != RankStatus::kOk) {
      return status;
    }
  }
}

RankStatus Pushes::AwaitRoom(const RankTensor& tensor, const Deadline& deadline, ErrorText& error) {
  const uint32_t capacity = link_.control().shape().ring_capacity;
  const auto room = [&] { return RingEntries() < capacity; };
  RankStatus over = RankStatus::kOk;
  switch (waiting_.Await(room, deadline, {link_.control().rank_line().push_waiters}, &over)) {
    case Awaited::kDone: break;
    case Awaited::kOver: return health_.FailOver(over, NameOf(tensor), error);
    case Awaited::kTimeout:
      return error.Fail(
          RankStatus::kTimeout,
          "tensor '%s': the agent has not taken the %u pushes before this one in time; "
          "nothing was pushed",
          NameOf(tensor), capacity);
  }
  return RankStatus::kOk;
}

}  // namespace talweg::shm
