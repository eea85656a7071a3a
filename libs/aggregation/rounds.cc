// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/rounds.h"

#include <algorithm>
#include <utility>

#include "libs/aggregation/contribution_rules.h"
#include "libs/aggregation/hurry.h"
#include "libs/base/check.h"
#include "libs/base/counted.h"
#include "libs/wire/round_kind.h"

namespace talweg::aggregation {

using wire::Form;
using wire::RefusedReason;
using wire::RoundKind;

ContributionTally Rounds::OnContributions(ConnectionId connection, const Session& session,
                                          std::optional<MemberIndex> member,
                                          const wire::Frame& frame, int64_t now_ns, Effects& out) {
  ContributionTally tally;
  const auto* entries = std::get_if<std::vector<wire::Contribute>>(&frame.entries);
  if (entries == nullptr) return tally;
  const wire::Header& header = frame.header;

  std::optional<std::pair<RefusedReason, std::string>> refusal;
  if (header.job != config_->job) {
    refusal = {RefusedReason::kWrongJob, "this connection serves job " +
                                             std::to_string(config_->job.value()) + ", not " +
                                             std::to_string(header.job.value())};
  } else if (session.state != SessionState::kActive) {
    refusal = {RefusedReason::kNotAMember, "not welcomed yet"};
  } else if (header.epoch != view_->epoch() || !member) {
    if (header.epoch <= session.epoch && session.epoch < view_->epoch()) {
      // On its way when the view changed. The member will fence, which returns all credit, and
      // contribute again.
      counters_->contributions_late += entries->size();
      return tally;
    }
    refusal = {RefusedReason::kWrongEpoch,
               "it is of epoch " + std::to_string(header.epoch.value()) + ", the view is of " +
                   std::to_string(view_->epoch().value())};
  }

  uint64_t cost_bytes = 0;
  for (const wire::Contribute& entry : *entries) {
    cost_bytes += wire::CreditCost(entry.form, entry.travel_bytes);
  }
  if (cost_bytes > 0) out.push_back(ReturnCredit{connection, cost_bytes});
  for (uint32_t i = 0; i < entries->size(); ++i) {
    if (refusal) {
      Refuse(connection, refusal->first, (*entries)[i], refusal->second, tally, out);
    } else {
      OnContribution({connection, *member, i, now_ns}, (*entries)[i], tally, out);
    }
  }
  return tally;
}

void Rounds::OnContribution(const Origin& from, const wire::Contribute& entry,
                            ContributionTally& tally, Effects& out) {
  const MemberIndex member = from.member;
  const auto refuse = [&](RefusedReason reason, std::string text) {
    Refuse(from.connection, reason, entry, std::move(text), tally, out);
  };
  const auto found = tensors_->find(entry.key);
  if (found == tensors_->end() || !found->second.DeclaredBy(member)) {
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
                  "tensor '" + name + "' has " + Counted(tensor.slice_count, "slice") +
                      ", and slice " + std::to_string(entry.slice.value()) +
                      " is not summed by aggregator '" + config_->self_name + "'");
  }
  if (!tensor.participation.TakesPart(member, slice->part)) {
    return refuse(RefusedReason::kWrongMode, "tensor '" + name + "': " + view_->MemberText(member) +
                                                 " neither gives nor gets slice " +
                                                 std::to_string(entry.slice.value()));
  }
  if (LengthIsWrong(tensor, *slice, entry)) {
    return refuse(RefusedReason::kWrongLength,
                  "tensor '" + name + "': slice " + std::to_string(entry.slice.value()) + " has " +
                      Counted(slice->length_bytes, "byte") + " of " +
                      std::string(DTypeName(tensor.agreed->collective.dtype)) +
                      " at most, and the contribution says " + std::to_string(entry.length_bytes) +
                      ", which travel as " + std::to_string(entry.travel_bytes) + ", with " +
                      std::to_string(entry.bytes.size()) + " inside");
  }
  std::string problem = ModeProblem(*view_, tensor, *slice, member, entry);
  if (!problem.empty()) return refuse(RefusedReason::kWrongMode, std::move(problem));

  const Round open = slice->round.open_round();
  switch (slice->round.OnContribution(member, entry, from.now_ns)) {
    case SliceRound::Outcome::kWrongRound:
      return refuse(RefusedReason::kWrongRound,
                    "tensor '" + name + "': it is of round " + std::to_string(entry.round.value()) +
                        ", the open round is " + std::to_string(open.value()));
    case SliceRound::Outcome::kWrongMode:
      return refuse(RefusedReason::kWrongMode,
                    "tensor '" + name + "': the others' contributions to round " +
                        std::to_string(entry.round.value()) +
                        " are of another mode, or a copy has no source, or two");
    case SliceRound::Outcome::kDuplicate: ++counters_->duplicates; return;
    case SliceRound::Outcome::kServeAgain:
      ++counters_->results_again;
      Serve(tensor, *slice, member, entry.wants_result, entry.priority, out);
      return;
    case SliceRound::Outcome::kCompleted:
      if (wire::KindOf(entry) == RoundKind::kSum && slice->round.taker_count() > 1) {
        latecomers_.OnLast(member, slice->round.behind_ns());
      }
      break;
    case SliceRound::Outcome::kTaken: Hurry(tensor, *slice, out); break;
  }
  const uint64_t bytes = wire::CreditCost(entry.form, entry.travel_bytes);
  ++counters_->contributions;
  counters_->contribution_bytes += bytes;
  tally.taken_bytes += bytes;
  if (entry.form == Form::kInline && bytes > 0) {
    out.push_back(StoreInline{.slots = tensor.slots.at(view_->IdOf(member)).id,
                              .offset_bytes = slice->slot_offset_bytes,
                              .travel_bytes = entry.travel_bytes,
                              .entry_index = from.entry_index});
  }
  if (slice->round.state() == SliceRound::State::kComplete) StartSumIfFree(tensor, *slice, out);
}

// Each member decides for a whole tensor, so one slice speaks for all.
void Rounds::Hurry(AggregatorTensor& tensor, const LocalSlice& slice, Effects& out) {
  const SliceRound& round = slice.round;
  if (!tensor.agreed->collective.leaves_out() || round.kind() != RoundKind::kSum ||
      round.open_round() <= tensor.hurried || 2 * round.here_count() < round.taker_count()) {
    return;
  }
  tensor.hurried = round.open_round();
  for (uint32_t i = 0; i < view_->member_count(); ++i) {
    const MemberIndex member{i};
    if (round.parts()[i].here || !tensor.participation.TakesPart(member, slice.part)) continue;
    TellToHurry(tensor, member, *view_, *attendance_, out);
  }
}

void Rounds::Refuse(ConnectionId connection, RefusedReason reason, const wire::Contribute& entry,
                    std::string text, ContributionTally& tally, Effects& out) {
  ++counters_->refused[static_cast<size_t>(reason)];
  ++tally.refused;
  SendEntry(connection, view_->epoch(),
            wire::Refused{.reason = reason,
                          .key = entry.key,
                          .round = entry.round,
                          .slice = entry.slice,
                          .text = std::move(text)},
            out);
}

void Rounds::StartSumIfFree(AggregatorTensor& tensor, LocalSlice& slice, Effects& out) {
  if (is_over_ || !tensor.Placed() || tensor.poison ||
      slice.round.state() != SliceRound::State::kComplete) {
    return;
  }
  if (slice.writes_under_way > 0) {
    ++counters_->sums_held_back;
    return;
  }
  // A Finish takes an existing result.
  std::string disagreement;
  if (slice.round.kind() != RoundKind::kFinish) {
    disagreement = RoundDisagreement(*view_, tensor, slice);
  }
  if (!disagreement.empty()) {
    ++counters_->rounds_disagreed;
    wire::CutText(disagreement);
    slice.round.Disagree(view_->epoch(), std::move(disagreement));
    return ServeAll(tensor, slice, out);
  }
  const SumId id = {.epoch = view_->epoch(),
                    .tensor = tensor.key,
                    .slice = slice.index,
                    .round = slice.round.open_round()};
  const uint32_t length_bytes = slice.round.length_bytes();
  const std::vector<SliceRound::Part>& parts = slice.round.parts();
  slice.round.StartSum();
  const auto slots_of = [&](size_t member) {
    return tensor.slots.at(view_->view().members[member].id).id;
  };
  if (wire::Copies(slice.round.kind())) {
    const std::optional<MemberIndex> source = slice.round.source();
    TALWEG_CHECK(source.has_value());
    ++counters_->copies;
    out.push_back(CopyResult{.id = id,
                             .offset_bytes = slice.slot_offset_bytes,
                             .travel_bytes = parts[source->value()].travel_bytes,
                             .source = slots_of(source->value()),
                             .result = tensor.result});
    return;
  }
  Sum sum = {.id = id,
             .dtype = tensor.agreed->collective.dtype,
             .op = tensor.agreed->collective.op,
             .encoding = tensor.agreed->collective.encoding,
             .offset_bytes = slice.slot_offset_bytes,
             .length_bytes = length_bytes,
             .result = tensor.result};
  sum.inputs.reserve(slice.round.taker_count());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].here) continue;
    sum.inputs.push_back({slots_of(i), parts[i].rank_count, parts[i].travel_bytes});
    sum.rank_count_total += parts[i].rank_count;
  }
  ++counters_->sums;
  counters_->summed_bytes += uint64_t{length_bytes} * sum.inputs.size();
  out.push_back(std::move(sum));
}

LocalSlice* Rounds::SliceOf(const SumId& id) {
  const auto found = tensors_->find(id.tensor);
  if (found == tensors_->end() || id.epoch != view_->epoch() || found->second.poison || is_over_) {
    ++counters_->sums_stale;
    return nullptr;
  }
  LocalSlice* const slice = found->second.FindLocal(id.slice);
  TALWEG_CHECK(slice != nullptr && slice->round.open_round() == id.round);
  return slice;
}

void Rounds::OnSummed(const SumId& id, uint32_t travel_bytes, Effects& out) {
  LocalSlice* const slice = SliceOf(id);
  if (slice == nullptr) return;
  slice->round.OnSummed(view_->epoch(), travel_bytes);
  ServeAll(tensors_->at(id.tensor), *slice, out);
}

void Rounds::OnUndecodable(const SumId& id, size_t input, Effects& out) {
  LocalSlice* const slice = SliceOf(id);
  if (slice == nullptr) return;
  AggregatorTensor& tensor = tensors_->at(id.tensor);
  // Inputs are the contributions that are here, in member order.
  const std::vector<SliceRound::Part>& parts = slice->round.parts();
  uint32_t member = 0;
  for (size_t before = input; before > 0 || !parts[member].here; ++member) {
    if (parts[member].here) --before;
  }
  ++counters_->rounds_disagreed;
  std::string text = UndecodableText(*view_, tensor, *slice, MemberIndex{member});
  wire::CutText(text);
  slice->round.Disagree(view_->epoch(), std::move(text));
  ServeAll(tensor, *slice, out);
}

void Rounds::ServeAll(AggregatorTensor& tensor, LocalSlice& slice, Effects& out) {
  // No member contributes to a round before it has the whole one before.
  if (++tensor.slices_done == tensor.local.size()) {
    tensor.slices_done = 0;
    ++counters_->rounds;
  }
  for (uint32_t i = 0; i < view_->member_count(); ++i) {
    if (!tensor.participation.TakesPart(MemberIndex{i}, slice.part)) continue;
    Serve(tensor, slice, MemberIndex{i}, slice.round.WantedResult(MemberIndex{i}),
          slice.round.WantedPriority(MemberIndex{i}), out);
  }
}

void Rounds::Serve(AggregatorTensor& tensor, LocalSlice& slice, MemberIndex member,
                   bool wants_bytes, int32_t priority, Effects& out) {
  // A member that is away asks again when it is back, by sending its contribution again.
  const std::optional<ConnectionId>& connection = attendance_->ConnectionOf(member);
  if (!connection || !tensor.DeclaredBy(member)) return;
  const SliceRound::Standing& standing = slice.round.standing();
  SendResult result = {.connection = *connection,
                       .epoch = view_->epoch(),
                       .entry = {.key = tensor.key,
                                 .round = standing.round,
                                 .slice = slice.index,
                                 .rank_count = standing.rank_count,
                                 .length_bytes = standing.length_bytes,
                                 .form = Form::kEmpty,
                                 .sum_epoch = standing.sum_epoch},
                       .result = tensor.result,
                       .offset_bytes = slice.slot_offset_bytes,
                       .travel_bytes = standing.travel_bytes,
                       .text = standing.disagreement,
                       .priority = priority};
  ++counters_->results;
  if (!standing.disagreement.empty()) {
    result.entry.form = Form::kDisagreement;
  } else if (wants_bytes) {
    counters_->result_bytes += standing.travel_bytes;
    result.entry.travel_bytes = standing.travel_bytes;
    result.entry.form =
        standing.travel_bytes <= wire::kInlineBytesMax ? Form::kInline : Form::kWritten;
  }
  if (result.entry.form == Form::kWritten) {
    result.target = tensor.declarations[member.value()].result[standing.round.value() & 1];
    result.target.address += tensor.agreed->collective.travel_offset(slice.offset_bytes);
    result.write = WriteId{++last_write_};
    writes_[result.write] = {*connection, tensor.key, slice.index, tensor.result};
    ++slice.writes_under_way;
  }
  out.push_back(std::move(result));
}

void Rounds::OnWriteDone(WriteId id, Effects& out) {
  const auto found = writes_.find(id);
  if (found == writes_.end()) return;  // Its connection was closed.
  const Write write = found->second;
  writes_.erase(found);
  WriteIsOver(write, out);
}

void Rounds::OnLost(ConnectionId connection, std::optional<MemberIndex> member, Effects& out) {
  if (member) ForgetContributionsOf(*member);
  ForgetWritesOf(connection, out);
}

void Rounds::ForgetContributionsOf(MemberIndex member) {
  for (auto& [key, tensor] : *tensors_) {
    // A tensor that was poisoned before it was placed in this view still has the slices of an older
    // epoch, with that epoch's members.
    if (tensor.declarations.empty() || !tensor.Placed()) continue;
    for (LocalSlice& slice : tensor.local) {
      const uint32_t before = slice.round.here_count();
      slice.round.Forget(member);
      counters_->contributions_forgotten += before - slice.round.here_count();
    }
  }
}

void Rounds::ForgetWritesOf(ConnectionId connection, Effects& out) {
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

void Rounds::WriteIsOver(const Write& write, Effects& out) {
  const auto found = tensors_->find(write.tensor);
  if (found == tensors_->end() || found->second.result != write.result) return;
  LocalSlice* slice = found->second.FindLocal(write.slice);
  if (slice == nullptr || slice->writes_under_way == 0) return;
  if (--slice->writes_under_way == 0) StartSumIfFree(found->second, *slice, out);
}

}  // namespace talweg::aggregation
