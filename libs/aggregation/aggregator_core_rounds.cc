// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "libs/aggregation/aggregator_core.h"
#include "libs/base/check.h"

// Contributions in, results out.
namespace talweg::aggregation {

using wire::Form;
using wire::Mode;
using wire::RefusedReason;

void AggregatorCore::OnContributions(ConnectionId connection, Session& session,
                                     const wire::Frame& frame, int64_t now_ns, Effects& out) {
  const auto* entries = std::get_if<std::vector<wire::Contribute>>(&frame.entries);
  if (entries == nullptr) return;
  const wire::Header& header = frame.header;

  std::optional<std::pair<RefusedReason, std::string>> refusal;
  const std::optional<MemberIndex> member = ActiveMember(session, connection);
  if (header.job != config_.job) {
    refusal = {RefusedReason::kWrongJob, "this connection serves job " +
                                             std::to_string(config_.job.value()) + ", not " +
                                             std::to_string(header.job.value())};
  } else if (session.state != SessionState::kActive) {
    refusal = {RefusedReason::kNotAMember, "not welcomed yet"};
  } else if (header.epoch != view_.epoch || !member) {
    if (header.epoch <= session.epoch && session.epoch < view_.epoch) {
      // On its way when the view changed. The member will fence, which returns all credit, and
      // contribute again.
      counters_.contributions_late += entries->size();
      return;
    }
    refusal = {RefusedReason::kWrongEpoch,
               "it is of epoch " + std::to_string(header.epoch.value()) + ", the view is of " +
                   std::to_string(view_.epoch.value())};
  }

  uint64_t cost_bytes = 0;
  for (const wire::Contribute& entry : *entries) {
    cost_bytes += wire::CreditCost(entry.form, entry.length_bytes);
  }
  if (cost_bytes > 0) out.push_back(ReturnCredit{connection, cost_bytes});
  for (uint32_t i = 0; i < entries->size(); ++i) {
    if (refusal) {
      Refuse(connection, session, refusal->first, (*entries)[i], refusal->second, out);
    } else {
      OnContribution(connection, session, *member, i, (*entries)[i], now_ns, out);
    }
  }
  if (session.refusals > config_.refusals_max) {
    Close(connection, std::to_string(session.refusals) + " of its contributions were refused", out);
  }
}

void AggregatorCore::OnContribution(ConnectionId connection, Session& session, MemberIndex member,
                                    uint32_t entry_index, const wire::Contribute& entry,
                                    int64_t now_ns, Effects& out) {
  const auto refuse = [&](RefusedReason reason, std::string text) {
    Refuse(connection, session, reason, entry, std::move(text), out);
  };
  const auto found = tensors_.find(entry.key);
  if (found == tensors_.end() || !found->second.DeclaredBy(member)) {
    return refuse(RefusedReason::kNotDeclared,
                  "this member has not declared the tensor on this connection");
  }
  AggregatorTensor& tensor = found->second;
  if (tensor.poison) return refuse(RefusedReason::kPoisoned, tensor.poison->text);
  const std::string& name = tensor.agreed->name;
  if (!tensor.declarations[member.value()].answered) {
    return refuse(RefusedReason::kNotDeclared,
                  "the declaration of tensor '" + name + "' has not been answered yet");
  }
  LocalSlice* slice = tensor.FindLocal(entry.slice);
  if (slice == nullptr) {
    return refuse(RefusedReason::kNotPlacedHere,
                  "tensor '" + name + "' has " + std::to_string(tensor.slice_count) +
                      " slices, and slice " + std::to_string(entry.slice.value()) +
                      " is not summed by aggregator '" + config_.self_name + "'");
  }
  if (!tensor.participation.TakesPart(member, slice->part)) {
    return refuse(RefusedReason::kWrongMode, "tensor '" + name + "': " + MemberText(member) +
                                                 " has nothing to do with slice " +
                                                 std::to_string(entry.slice.value()));
  }
  if (LengthIsWrong(tensor, *slice, entry)) {
    return refuse(RefusedReason::kWrongLength,
                  "tensor '" + name + "': slice " + std::to_string(entry.slice.value()) + " has " +
                      std::to_string(slice->length_bytes) + " bytes of " +
                      std::string(DTypeName(tensor.agreed->collective.dtype)) +
                      " at most, and the contribution says " + std::to_string(entry.length_bytes) +
                      ", with " + std::to_string(entry.bytes.size()) + " inside");
  }
  std::string problem = ModeProblem(tensor, *slice, member, entry);
  if (!problem.empty()) return refuse(RefusedReason::kWrongMode, std::move(problem));

  const Round open = slice->round.open_round();
  switch (slice->round.OnContribution(member, entry, now_ns)) {
    case SliceRound::Outcome::kWrongRound:
      return refuse(RefusedReason::kWrongRound,
                    "tensor '" + name + "': it is of round " + std::to_string(entry.round.value()) +
                        ", the open round is " + std::to_string(open.value()));
    case SliceRound::Outcome::kWrongMode:
      return refuse(RefusedReason::kWrongMode,
                    "tensor '" + name + "': the others' contributions to round " +
                        std::to_string(entry.round.value()) +
                        " are of another mode, or a copy has no source, or two");
    case SliceRound::Outcome::kDuplicate: ++counters_.duplicates; return;
    case SliceRound::Outcome::kServeAgain:
      ++counters_.results_again;
      Serve(tensor, *slice, member, entry.wants_result, entry.priority, out);
      return;
    case SliceRound::Outcome::kTaken:
    case SliceRound::Outcome::kCompleted: break;
  }
  const uint64_t bytes = wire::CreditCost(entry.form, entry.length_bytes);
  ++counters_.contributions;
  counters_.contribution_bytes += bytes;
  session.contribution_bytes += bytes;
  if (entry.form == Form::kInline && bytes > 0) {
    out.push_back(StoreInline{.slots = tensor.slots.at(view_.members[member.value()].id).id,
                              .offset_bytes = slice->slot_offset_bytes,
                              .length_bytes = entry.length_bytes,
                              .entry_index = entry_index});
  }
  if (slice->round.state() == SliceRound::State::kComplete) StartSumIfFree(tensor, *slice, out);
}

bool AggregatorCore::LengthIsWrong(const AggregatorTensor& tensor, const LocalSlice& slice,
                                   const wire::Contribute& entry) {
  if (entry.length_bytes > slice.length_bytes) return true;
  if (entry.length_bytes % DTypeSize(tensor.agreed->collective.dtype) != 0) return true;
  switch (entry.form) {
    case Form::kInline: return entry.bytes.size() != entry.length_bytes;
    case Form::kWritten: return false;
    case Form::kEmpty:
    case Form::kDisagreement: break;
  }
  return entry.length_bytes != 0;
}

std::string AggregatorCore::ModeProblem(const AggregatorTensor& tensor, const LocalSlice& slice,
                                        MemberIndex member, const wire::Contribute& entry) const {
  // This is asked for every contribution, and there is hardly ever something to say.
  const auto who = [&] { return "tensor '" + tensor.agreed->name + "': " + MemberText(member); };
  const Collective& collective = tensor.agreed->collective;
  const uint32_t giving_ranks = tensor.participation.GivingRanks(member, slice.part);
  if (entry.mode == Mode::kSum) {
    if (collective.copies()) {
      return who() + " contributes to the sum of a tensor that is copied, " +
             Describe(*tensor.agreed);
    }
    if (entry.form == Form::kDisagreement) return "";
    if (entry.form == Form::kEmpty) return who() + " contributes nothing to a sum";
    if (entry.rank_count == 0 || entry.rank_count > giving_ranks) {
      return who() + " contributes for " + std::to_string(entry.rank_count) + " ranks and has " +
             std::to_string(giving_ranks);
    }
    return "";
  }
  if (entry.sum_epoch > view_.epoch) return who() + " has a result of an epoch to come";
  if (entry.form == Form::kDisagreement) {
    return collective.copies() ? "" : who() + " disagrees in a copy of what is summed";
  }
  if (entry.form == Form::kEmpty) return "";
  if (entry.sum_epoch != Epoch{0}) return "";  // The source of a Finish.
  if (!collective.copies()) return who() + " copies bytes that are no result into a sum";
  if (giving_ranks == 0) {
    return who() + " gives what it does not have, " + Describe(*tensor.agreed) + ", slice " +
           std::to_string(slice.index.value());
  }
  return "";
}

std::string AggregatorCore::RoundDisagreement(const AggregatorTensor& tensor,
                                              const LocalSlice& slice) const {
  const std::vector<SliceRound::Part>& parts = slice.round.parts();
  const std::string what = "round " + std::to_string(slice.round.open_round().value()) +
                           " of tensor '" + tensor.agreed->name + "': ";
  std::optional<size_t> first;
  std::optional<size_t> first_giver;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].here) continue;
    if (!parts[i].disagreement.empty()) return what + parts[i].disagreement;
    if (!first) first = i;
    if (!first_giver && parts[i].has_bytes) first_giver = i;
  }
  const auto said = [&](size_t member, bool with_length) {
    const std::optional<uint64_t> length =
        with_length ? std::optional<uint64_t>(parts[member].length_bytes) : std::nullopt;
    const MemberIndex index{static_cast<uint32_t>(member)};
    const uint32_t rank = view_.RankBase(index).value() +
                          tensor.participation.RanksOf(index).front().local_rank.value();
    return "rank " + std::to_string(rank) + " (" + MemberText(index) + ") gives " +
           DescribeGiven(parts[member].signature, length);
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].here) continue;
    if (parts[i].signature != parts[*first].signature) {
      return what + said(*first, false) + ", " + said(i, false);
    }
    if (slice.round.mode() == Mode::kSum &&
        parts[i].length_bytes != parts[*first_giver].length_bytes) {
      return what + said(*first_giver, true) + ", " + said(i, true) + " in slice " +
             std::to_string(slice.index.value());
    }
  }
  return "";
}

void AggregatorCore::Refuse(ConnectionId connection, Session& session, RefusedReason reason,
                            const wire::Contribute& entry, std::string text, Effects& out) {
  ++counters_.refused[static_cast<size_t>(reason)];
  ++session.refusals;
  SendEntry(connection,
            wire::Refused{.reason = reason,
                          .key = entry.key,
                          .round = entry.round,
                          .slice = entry.slice,
                          .text = std::move(text)},
            out);
}

void AggregatorCore::StartSumIfFree(AggregatorTensor& tensor, LocalSlice& slice, Effects& out) {
  if (!tensor.Placed() || tensor.poison || slice.round.state() != SliceRound::State::kComplete) {
    return;
  }
  if (slice.writes_under_way > 0) {
    ++counters_.sums_held_back;
    return;
  }
  // A Finish takes a result that stands.
  std::string disagreement;
  if (!slice.round.is_finish()) {
    disagreement = RoundDisagreement(tensor, slice);
  }
  if (!disagreement.empty()) {
    ++counters_.rounds_disagreed;
    wire::CutText(disagreement);
    slice.round.Disagree(view_.epoch, std::move(disagreement));
    return ServeAll(tensor, slice, out);
  }
  const SumId id = {.epoch = view_.epoch,
                    .tensor = tensor.key,
                    .slice = slice.index,
                    .round = slice.round.open_round()};
  const uint32_t length_bytes = slice.round.length_bytes();
  slice.round.StartSum();
  const auto slots_of = [&](size_t member) { return tensor.slots.at(view_.members[member].id).id; };
  if (slice.round.mode() == Mode::kCopy) {
    const std::optional<MemberIndex> source = slice.round.source();
    TALWEG_CHECK(source.has_value());
    ++counters_.copies;
    out.push_back(CopyResult{.id = id,
                             .offset_bytes = slice.slot_offset_bytes,
                             .length_bytes = length_bytes,
                             .source = slots_of(source->value()),
                             .result = tensor.result});
    return;
  }
  Sum sum = {.id = id,
             .dtype = tensor.agreed->collective.dtype,
             .op = tensor.agreed->collective.op,
             .offset_bytes = slice.slot_offset_bytes,
             .length_bytes = length_bytes,
             .result = tensor.result};
  const std::vector<SliceRound::Part>& parts = slice.round.parts();
  sum.inputs.reserve(slice.round.taker_count());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].here) continue;
    sum.inputs.push_back({slots_of(i), parts[i].rank_count});
    sum.rank_count_total += parts[i].rank_count;
  }
  ++counters_.sums;
  counters_.summed_bytes += uint64_t{length_bytes} * sum.inputs.size();
  out.push_back(std::move(sum));
}

void AggregatorCore::OnSummed(const SumId& id, Effects& out) {
  none_waits_ = false;
  const auto found = tensors_.find(id.tensor);
  if (found == tensors_.end() || id.epoch != view_.epoch || found->second.poison || closed_) {
    ++counters_.sums_stale;
    return;
  }
  AggregatorTensor& tensor = found->second;
  LocalSlice* slice = tensor.FindLocal(id.slice);
  TALWEG_CHECK(slice != nullptr && slice->round.open_round() == id.round);
  slice->round.OnSummed(view_.epoch);
  ServeAll(tensor, *slice, out);
}

void AggregatorCore::ServeAll(AggregatorTensor& tensor, LocalSlice& slice, Effects& out) {
  // Nobody contributes to a round before it has the whole one before.
  if (++tensor.slices_done == tensor.local.size()) {
    tensor.slices_done = 0;
    ++counters_.rounds;
  }
  for (uint32_t i = 0; i < members_.size(); ++i) {
    if (!tensor.participation.TakesPart(MemberIndex{i}, slice.part)) continue;
    Serve(tensor, slice, MemberIndex{i}, slice.round.WantedResult(MemberIndex{i}),
          slice.round.WantedPriority(MemberIndex{i}), out);
  }
}

void AggregatorCore::Serve(AggregatorTensor& tensor, LocalSlice& slice, MemberIndex member,
                           bool wants_bytes, int32_t priority, Effects& out) {
  // Who is away now asks again when it is back, by sending its contribution again.
  const std::optional<ConnectionId>& connection = members_[member.value()].connection;
  if (!connection || !tensor.DeclaredBy(member)) return;
  const SliceRound::Standing& standing = slice.round.standing();
  SendResult result = {.connection = *connection,
                       .epoch = view_.epoch,
                       .entry = {.key = tensor.key,
                                 .round = standing.round,
                                 .slice = slice.index,
                                 .rank_count = standing.rank_count,
                                 .length_bytes = standing.length_bytes,
                                 .form = Form::kEmpty,
                                 .sum_epoch = standing.sum_epoch},
                       .result = tensor.result,
                       .offset_bytes = slice.slot_offset_bytes,
                       .length_bytes = standing.length_bytes,
                       .text = standing.disagreement,
                       .priority = priority};
  ++counters_.results;
  if (!standing.disagreement.empty()) {
    result.entry.form = Form::kDisagreement;
  } else if (wants_bytes) {
    counters_.result_bytes += standing.length_bytes;
    result.entry.form =
        standing.length_bytes <= wire::kInlineBytesMax ? Form::kInline : Form::kWritten;
  }
  if (result.entry.form == Form::kWritten) {
    result.target = tensor.declarations[member.value()].result[standing.round.value() & 1];
    result.target.address += slice.offset_bytes;
    result.write = WriteId{++last_write_};
    writes_[result.write] = {*connection, tensor.key, slice.index, tensor.result};
    ++slice.writes_under_way;
  }
  out.push_back(std::move(result));
}

void AggregatorCore::OnWriteDone(WriteId id, Effects& out) {
  none_waits_ = false;
  const auto found = writes_.find(id);
  if (found == writes_.end()) return;  // Its connection was closed.
  const Write write = found->second;
  writes_.erase(found);
  WriteIsOver(write, out);
}

void AggregatorCore::ForgetWritesOf(ConnectionId connection, Effects& out) {
  std::vector<Write> over;
  for (auto it = writes_.begin(); it != writes_.end();) {
    if (it->second.connection == connection) {
      over.push_back(it->second);
      it = writes_.erase(it);
    } else {
      ++it;
    }
  }
  for (const Write& write : over) WriteIsOver(write, out);
}

void AggregatorCore::WriteIsOver(const Write& write, Effects& out) {
  const auto found = tensors_.find(write.tensor);
  if (found == tensors_.end() || found->second.result != write.result) return;
  LocalSlice* slice = found->second.FindLocal(write.slice);
  if (slice == nullptr || slice->writes_under_way == 0) return;
  if (--slice->writes_under_way == 0) StartSumIfFree(found->second, *slice, out);
}

}  // namespace talweg::aggregation
