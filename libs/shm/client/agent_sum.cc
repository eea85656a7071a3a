// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/agent_sum.h"

#include <atomic>

#include "libs/shm/client/stream_copy.h"

namespace talweg::shm {

Awaited AgentSum::Await(RoundCall& call, RankStatus* over) {
  const RankTensor& tensor = call.tensor;
  const OpenedRound& opened = call.opened;
  ArrivingResult& arriving = call.arriving;
  arriving = Arriving(call);
  arriving.GoOnBehind(call.copied_early);
  const auto complete = [&] { return states_.IsComplete(tensor, opened.round, opened.others); };
  Awaited awaited = Awaited::kTimeout;
  while (awaited == Awaited::kTimeout) {
    awaited = waiting_.Await(
        [&] { return complete() || (!call.only_looks && arriving.Ready()); }, call.deadline,
        {link_.control().rank_line().waiters, tensor.index,
         call.only_looks ? 0 : arriving.awaited_bytes(), !opened.others.visible()},
        over);
    if (awaited != Awaited::kDone || complete()) break;
    arriving.CopyNew();
    awaited = waiting_.Look(complete, over);
    if (call.deadline.Passed(MonotonicNs())) break;
  }
  return awaited;
}

ArrivingResult AgentSum::Arriving(const RoundCall& call) const {
  const RankTensor& tensor = call.tensor;
  const Taking& taking = call.taking;
  const uint64_t round = call.opened.round;
  // Results are not copied early over the contribution, because it may have to be contributed
  // again; nor for a broadcast, because if it is aborted the old bytes are still of use.
  if (tensor.arrivals == nullptr || taking.out == nullptr || !taking.takes ||
      taking.out_bytes < tensor.bytes ||
      Overlap(tensor.contribution, tensor.bytes, taking.out, tensor.bytes) ||
      tensor.collective.copies()) {
    return {};
  }
  // If this rank comes late, they may be of the next round.
  if (tensor.collective.leaves_out()) return {};
  // Arrivals tell of the tensor as a whole.
  if (call.opened.is_short || tensor.buffer.part_count != 1 || tensor.gets.count != 1) return {};
  return {tensor.arrivals,
          tensor.bytes,
          round,
          tensor.result[round & 1],
          static_cast<std::byte*>(taking.out),
          streaming_.Streams(tensor.bytes)};
}

RankStatus AgentSum::Find(const RoundCall& call, CompleteRound* complete, ErrorText&) const {
  const RankTensor& tensor = call.tensor;
  complete->lengths = RoundLengths(tensor.buffer);
  // All ranks have pushed the same lengths to a reduction; otherwise the round would have failed.
  if (tensor.has_tables && (call.opened.is_short || tensor.collective.copies())) {
    complete->lengths = RoundLengths(
        tensor.buffer, reinterpret_cast<const uint32_t*>(tensor.result[complete->round & 1] +
                                                         tensor.buffer.table_offset()));
  }
  return RankStatus::kOk;
}

RankStatus AgentSum::Take(RoundCall& call, const CompleteRound& complete, uint64_t bytes,
                          ErrorText& error) {
  if (call.arriving.Finish()) return RankStatus::kOk;
  const RankTensor& tensor = call.tensor;
  const Taking& taking = call.taking;
  const bool stays = call.is_in_place && taking.out == nullptr;
  if (stays && tensor.one_place) return RankStatus::kOk;  // The result is already there.
  void* const out = stays ? tensor.ContributionOf(complete.round) : taking.out;
  const Target target{static_cast<std::byte*>(out), bytes, taking.places, taking.rooms};
  const RankStatus status = parts_.Copy(tensor, complete, target, error);
  if (status != RankStatus::kOk) return status;
  statistics_.bytes_copied.fetch_add(bytes, std::memory_order_relaxed);
  return RankStatus::kOk;
}

RankStatus AgentSum::Show(RoundCall& call, const CompleteRound& complete, uint64_t,
                          const void** data, ErrorText&) {
  const RankTensor& tensor = call.tensor;
  *data = tensor.result[complete.round & 1] + tensor.buffer.part_offset(tensor.gets.first);
  return RankStatus::kOk;
}

}  // namespace talweg::shm
