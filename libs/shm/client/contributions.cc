// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/contributions.h"

#include "libs/base/signature_text.h"
#include "libs/reduce/reduce.h"
#include "libs/shm/client/round_lengths.h"

namespace talweg::shm {

Awaited Contributions::Await(const RoundCall& call, RankStatus* over) {
  const RankTensor& tensor = call.tensor;
  const OpenedRound& opened = call.opened;
  return waiting_.Await(
      [&] { return states_.IsComplete(tensor, opened.round, opened.others); }, call.deadline,
      {link_.control().rank_line().waiters, tensor.index, 0, !opened.others.visible()}, over);
}

Awaited Contributions::AwaitMemory(const RankTensor& tensor, const Deadline& deadline,
                                   RankStatus* over) {
  std::byte* arenas[kSummingRanksMax];
  if (memory_.FindArenas(tensor, arenas)) return Awaited::kDone;
  // The arenas came before the round was complete, so one look at the socket is usually enough.
  waiting_.ReadSocket(0);
  return waiting_.Await([&] { return memory_.FindArenas(tensor, arenas); }, deadline,
                        {waiting_.uncounted()}, over);
}

RankStatus Contributions::Find(const RoundCall& call, CompleteRound* complete,
                               ErrorText& error) const {
  const RankTensor& tensor = call.tensor;
  complete->lengths = RoundLengths(tensor.buffer);
  const RankStatus found = FindArenas(tensor, complete->arenas, error);
  if (found != RankStatus::kOk || !tensor.shape.has_tables) return found;
  if (!tensor.collective.copies()) {
    if (call.opened.is_short) {
      complete->lengths = RoundLengths(tensor.buffer, tensor.LengthsOf(complete->round));
    }
  } else {
    complete->lengths =
        RoundLengths(tensor.buffer, tensor.collective.gives, tensor.rank_count, tensor.root);
    for (uint32_t i = 0; i < tensor.rank_count; ++i) {
      complete->lengths.SetTable(i, PushedTable(tensor, *complete, i));
    }
  }
  return call.opened.compares ? Compare(tensor, *complete, error) : RankStatus::kOk;
}

RankStatus Contributions::FindArenas(const RankTensor& tensor, std::byte** arenas,
                                     ErrorText& error) const {
  if (!memory_.FindArenas(tensor, arenas)) {
    return error.Fail(RankStatus::kInternal,
                      "tensor '%s': the agent at '%s' says that its round is complete, and has not "
                      "handed over the memory of all %u ranks; please report it",
                      NameOf(tensor), link_.path(), identity_.local_size);
  }
  const Collective& collective = tensor.collective;
  if (collective.copies() ? tensor.root >= tensor.rank_count
                          : !reduce::IsReduction(collective.dtype, collective.op)) {
    return error.Fail(RankStatus::kInternal,
                      "tensor '%s': the agent at '%s' leaves it to the ranks to sum, and they "
                      "cannot; please report it",
                      NameOf(tensor), link_.path());
  }
  return RankStatus::kOk;
}

const uint32_t* Contributions::PushedTable(const RankTensor& tensor, const CompleteRound& complete,
                                           uint32_t rank) {
  const std::byte* const arena = complete.arenas[rank];
  const auto& line = *reinterpret_cast<const PushedLine*>(arena + tensor.shape.pushed_offset());
  if (!tensor.has_tables || line.has_lengths[complete.round & 1] == 0) return nullptr;
  return reinterpret_cast<const uint32_t*>(arena + tensor.shape.table_offset(complete.round));
}

RankStatus Contributions::Compare(const RankTensor& tensor, const CompleteRound& complete,
                                  ErrorText& error) const {
  const auto signature = [&](uint32_t rank) {
    return reinterpret_cast<const PushedLine*>(complete.arenas[rank] + tensor.shape.pushed_offset())
        ->signature[complete.round & 1];
  };
  const auto round = static_cast<unsigned long long>(complete.round);
  uint32_t named = 0;
  while (named + 1 < tensor.rank_count && signature(named) == kFitsAll) ++named;
  const RoundSignature first = signature(named);
  for (uint32_t i = named + 1; i < tensor.rank_count; ++i) {
    const RoundSignature other = signature(i);
    if (Fit(first, other)) continue;
    char texts[2][kSignatureTextBytes];
    PrintSignature(first, texts[0], sizeof(texts[0]));
    PrintSignature(other, texts[1], sizeof(texts[1]));
    return error.Fail(RankStatus::kMismatch,
                      "tensor '%s', round %llu: rank %u has pushed %s, rank %u has pushed %s; call "
                      "the same on all ranks, in the same order",
                      NameOf(tensor), round, named, first == 0 ? "without a signature" : texts[0],
                      i, other == 0 ? "without a signature" : texts[1]);
  }
  const uint32_t* const first_table = PushedTable(tensor, complete, 0);
  for (uint32_t i = 0; i < tensor.rank_count; ++i) {
    const uint32_t* const table = PushedTable(tensor, complete, i);
    if (tensor.collective.copies()) {
      if (table == nullptr) continue;
      const Parts parts = Parts::Of(tensor.collective.gives, i, tensor.rank_count, tensor.root,
                                    tensor.buffer.part_count);
      for (uint32_t k = 0; k < parts.count; ++k) {
        uint64_t length = 0;
        if (!complete.lengths.Get(parts[k], &length))
          return parts_.FailLength(tensor, length, error);
      }
      continue;
    }
    if (table == nullptr && first_table == nullptr) continue;
    const RoundLengths firsts(tensor.buffer, first_table);
    const RoundLengths others(tensor.buffer, table);
    for (uint32_t part = 0; part < tensor.buffer.part_count; ++part) {
      uint64_t lengths[2] = {};
      const bool are_lengths = firsts.Get(part, &lengths[0]) && others.Get(part, &lengths[1]);
      if (are_lengths && lengths[0] == lengths[1]) continue;
      return error.Fail(RankStatus::kMismatch,
                        "tensor '%s', round %llu: rank 0 has pushed %llu byte%s as part %u of %u, "
                        "rank %u has pushed %llu byte%s; give it the same length at all ranks",
                        NameOf(tensor), round, static_cast<unsigned long long>(lengths[0]),
                        PluralEnd(lengths[0]), part, tensor.buffer.part_count, i,
                        static_cast<unsigned long long>(lengths[1]), PluralEnd(lengths[1]));
    }
  }
  return RankStatus::kOk;
}

}  // namespace talweg::shm
