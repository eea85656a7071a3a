// SPDX-License-Identifier: Apache-2.0
// What a rank gets of a round that is complete.
#include <atomic>
#include <cstdint>

#include "libs/shm/client/client.h"
#include "libs/shm/client/stream_copy.h"

namespace talweg::shm {

RankStatus Client::TakeRound(Tensor& tensor, const OpenedRound& opened, const Taking& taking,
                             bool in_place, bool on_device, ArrivingResult& arriving,
                             const Deadline& deadline, Ending* ending, ErrorText& error) {
  const bool reads = taking.NeedsLengths() || in_place;
  CompleteRound complete{.round = opened.round};
  complete.own_part = opened.own_part;
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
    return FailRoom(tensor, opened.round, bytes, taking.out_bytes, error);
  }
  for (uint32_t i = 0; taking.places != nullptr && i < tensor.gets.count; ++i) {
    uint64_t length = 0;
    if (!complete.lengths.Get(tensor.gets[i], &length)) return FailLength(tensor, length, error);
    if (length <= taking.rooms[i]) continue;
    ending->is_taken = false;
    return FailRoom(tensor, opened.round, length, taking.rooms[i], error);
  }
  if (taking.out == nullptr && taking.places == nullptr && !goes_in_place) return RankStatus::kOk;
  const RankStatus status =
      TakeResult(tensor, complete, in_place, taking, bytes, arriving, deadline, error);
  // Other ranks have not done their pieces of it.
  if (status == RankStatus::kTimeout) ending->is_taken = false;
  return status;
}

RankStatus Client::FailRoom(const Tensor& tensor, uint64_t round, uint64_t bytes, uint64_t room,
                            ErrorText& error) const {
  return error.Fail(RankStatus::kInvalidArgument,
                    "tensor '%s': round %llu has %llu bytes for this rank, and there is room for "
                    "%llu; the round stays open, wait again with more",
                    NameOf(tensor), static_cast<unsigned long long>(round),
                    static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(room));
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
          streaming_.Streams(tensor.bytes)};
}

RankStatus Client::FindRound(const Tensor& tensor, const OpenedRound& opened,
                             CompleteRound* complete, ErrorText& error) const {
  const bool is_reduction = !tensor.collective.copies();
  complete->lengths = RoundLengths(tensor.buffer);
  if (!tensor.ranks_sum) {
    // All ranks have pushed the same lengths to a reduction, or it would not have come to this.
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
                    NameOf(tensor), static_cast<unsigned long long>(length), link_.path());
}

RankStatus Client::TakeResult(Tensor& tensor, const CompleteRound& complete, bool in_place,
                              const Taking& taking, uint64_t bytes, ArrivingResult& arriving,
                              const Deadline& deadline, ErrorText& error) {
  std::byte* const contribution = tensor.ContributionOf(complete.round);
  auto* to = static_cast<std::byte*>(in_place && taking.out == nullptr ? contribution : taking.out);
  const Target target{to, bytes, taking.places, taking.rooms};
  if (tensor.shape.in_place) {
    const RankStatus status = SumInPlace(tensor, complete, bytes, deadline, error);
    if (status != RankStatus::kOk || to == contribution) return status;
    Copy(to, contribution, bytes, streaming_.Streams(bytes));
  } else if (tensor.ranks_sum) {
    const RankStatus status = SumContributions(tensor, complete, target, error);
    if (status != RankStatus::kOk) return status;
  } else {
    if (arriving.Finish()) return RankStatus::kOk;
    const RankStatus status = CopyParts(tensor, complete, target, error);
    if (status != RankStatus::kOk) return status;
  }
  statistics_.bytes_copied.fetch_add(bytes, std::memory_order_relaxed);
  return RankStatus::kOk;
}

RankStatus Client::CopyParts(const Tensor& tensor, const CompleteRound& complete,
                             const Target& target, ErrorText& error) const {
  const Collective& collective = tensor.collective;
  uint64_t copied = 0;
  for (uint32_t i = 0; i < tensor.gets.count; ++i) {
    const uint32_t part = tensor.gets[i];
    uint64_t length = 0;
    // It may have been changed since they were added up.
    if (!complete.lengths.Get(part, &length) || length > target.bytes - copied ||
        (target.places != nullptr && length > target.rooms[i])) {
      return FailLength(tensor, length, error);
    }
    if (length == 0) continue;
    std::byte* const to =
        target.places == nullptr ? target.out + copied : static_cast<std::byte*>(target.places[i]);
    copied += length;
    const std::byte* from = tensor.result[complete.round & 1] + tensor.buffer.part_offset(part);
    if (tensor.ranks_sum) {
      const uint32_t giver = GiverOf(collective.gives, part, tensor.rank_count, tensor.root);
      from = giver == tensor.rank && complete.own_part != nullptr
                 ? complete.own_part
                 : complete.arenas[giver] + tensor.shape.buffer_offset(complete.round) +
                       tensor.PartOffset(part, giver);
    }
    if (from != to) Copy(to, from, length, streaming_.Streams(length));
  }
  return RankStatus::kOk;
}

RankStatus Client::Result(uint32_t index, uint64_t round, const void** data, uint64_t* bytes,
                          ErrorText& error) {
  if (fork_guard_.Forked()) return FailForked(error);
  Tensor* tensor = tensors_.Find(index);
  if (tensor == nullptr) return TensorTable::FailNoTensor(index, error);
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
    opened.own_part = tensor->own_part;
    ++tensor->readers;  // From here on a push is kBusy, as in Wait.
  }
  RankStatus status = states_.Status(*tensor, round, error);
  if (status == RankStatus::kOk && tensor->ranks_sum) {
    RankStatus over = RankStatus::kOk;
    if (AwaitContributions(*tensor, Deadline(-1), &over) != Awaited::kDone) {
      status = health_.FailOver(over, NameOf(*tensor), error);
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

}  // namespace talweg::shm
