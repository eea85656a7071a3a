// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/rounds.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "libs/base/counted.h"
#include "libs/wire/travel_lengths.h"

namespace talweg::pipeline {

bool Rounds::IsDecided(const AgentTensor& tensor) const {
  return views_->is_past_fences() && tensor.state == TensorState::kOpen &&
         !tensor.awaits_decision();
}

bool Rounds::MaySend(const AgentTensor& tensor) const {
  return IsDecided(tensor) && !tensor.WaitsForPushes();
}

bool Rounds::GiveUpDead(AgentTensor& tensor, Effects& out) {
  if (!tensor.is_dead || !IsDecided(tensor) || tensor.finish()) return false;
  if (tensor.pushed_count == 0 && !tensor.contributed()) return false;
  const bool lost_root =
      tensor.spec.collective.has_root() && !views_->present()->IndexOf(tensor.root_member);
  failures_->GiveUp(
      tensor, Status::kAborted,
      "tensor '" + tensor.spec.name + "': " +
          (lost_root ? "its root (local rank " + std::to_string(tensor.root_local_rank.value()) +
                           " of node " + std::to_string(tensor.root_member.node.value()) + ")"
                     : "one of its ranks") +
          " is gone; end the step (in Python: end_step()), or use a root or a process set of "
          "ranks that are there",
      out);
  return true;
}

void Rounds::Queue(AgentTensor& tensor, Effects& out) {
  if (GiveUpDead(tensor, out) || !MaySend(tensor)) return;
  const ActiveRound round(tensor);
  // No other node takes part, so no owner would end the round.
  if (!tensor.finish() && !tensor.given.disagreement.empty() && round.IsPrivate()) {
    return Abort(tensor, Status::kMismatch,
                 "round " + std::to_string(tensor.open_round().value()) + " of tensor '" +
                     tensor.spec.name + "': " + tensor.given.disagreement,
                 out);
  }
  std::map<AggregatorIndex, uint64_t> part_bytes;
  for (const view::Slice& slice : tensor.slices) part_bytes[slice.owner] += slice.length_bytes;
  for (uint32_t i = 0; i < tensor.slices.size(); ++i) {
    if (tensor.slice_states[i] != SliceState::kIdle) continue;
    const view::Slice& slice = tensor.slices[i];
    const uint64_t whole = std::max<uint64_t>(part_bytes.at(slice.owner), 1);
    const bool is_charged = !round.IsPrivate(SliceIndex{i}) || tensor.travel == Travel::kNone;
    tensor.slice_states.Set(i, SliceState::kQueued);
    queue_->Push({.owner = slice.owner,
                  .priority = tensor.priority,
                  .order = tensor.order,
                  .position = static_cast<uint32_t>(slice.slot_offset_bytes *
                                                    schedule::QueuedSlice::kWhole / whole),
                  .tensor = tensor.key,
                  .round = tensor.active_round(),
                  .slice = SliceIndex{i},
                  .cost_bytes = is_charged ? round.CostOf(SliceIndex{i}) : 0,
                  .is_bound = tensor.travels_encoded() && !round.IsPrivate(SliceIndex{i})});
  }
}

Epoch Rounds::SumEpoch(const AgentTensor& tensor) const {
  return tensor.finish() ? tensor.finish()->sum_epoch : views_->present()->epoch;
}

bool Rounds::IsExpected(const AgentTensor& tensor, Incarnation incarnation,
                        const wire::Result& entry) const {
  const uint32_t s = entry.slice.value();
  if (tensor.state == TensorState::kFailed || tensor.awaits_decision() ||
      entry.round != tensor.active_round() || s >= tensor.slices.size() ||
      tensor.slice_states[s] != SliceState::kSent) {
    return false;
  }
  const view::View& view = *views_->present();
  const view::Slice& slice = tensor.slices[s];
  return slice.owner.value() < view.aggregators.size() &&
         view.aggregators[slice.owner.value()].incarnation == incarnation &&
         entry.sum_epoch == SumEpoch(tensor) && entry.length_bytes <= slice.length_bytes;
}

bool Rounds::TakeBytes(const AgentTensor& tensor, const wire::Result& entry, uint32_t position,
                       Effects& out) {
  if (entry.form == wire::Form::kEmpty ||
      !wire::TravelLengthsAgree(entry, tensor.travel_encoding())) {
    return false;
  }
  if (entry.form == wire::Form::kWritten) {
    counters_->result_bytes_written += entry.travel_bytes;
  } else {
    const Memory memory = tensor.spec.collective.encodes() ? Memory::kArrivals : Memory::kResult;
    out.push_back(
        CopyInline{position, ActiveRound(tensor).BytesOf(entry.slice, memory, entry.travel_bytes)});
  }
  ++counters_->results_taken;
  counters_->result_bytes_taken += entry.travel_bytes;
  return true;
}

void Rounds::OnResult(AggregatorIndex from, Incarnation incarnation, const wire::Result& entry,
                      uint32_t position, Effects& out) {
  const auto ignore = [this] { ++counters_->results_ignored; };
  AgentTensor* const found = tensors_->Find(entry.key);
  if (found == nullptr || !IsExpected(*found, incarnation, entry)) return ignore();
  AgentTensor& tensor = *found;
  if (entry.form == wire::Form::kDisagreement) {
    if (tensor.finish()) return ignore();
    if (!tensor.disagreement || entry.slice < tensor.disagreement->slice) {
      tensor.disagreement = {
          entry.slice,
          std::string(reinterpret_cast<const char*>(entry.bytes.data()), entry.bytes.size())};
    }
    return SliceOver(tensor, entry.slice, out);
  }
  const ActiveRound round(tensor);
  // The result of a slice to which this node contributed is as long as its contribution.
  const bool is_known = !tensor.finish() && round.GivingRanks(entry.slice) > 0;
  if (is_known && entry.length_bytes != round.GivenLength(entry.slice)) return ignore();
  if (tensor.partial.ranks_summed > 0 && tensor.partial.ranks_summed != entry.rank_count) {
    failures_->ReportAndFail(
        "aggregator '" + links_->NameOf(from) + "' summed " + Counted(entry.rank_count, "rank") +
            " into slice " + std::to_string(entry.slice.value()) + " of tensor '" +
            tensor.spec.name + "', others " + std::to_string(tensor.partial.ranks_summed),
        out);
    return;
  }
  if (round.WantsResult(entry.slice)) {
    if (!TakeBytes(tensor, entry, position, out)) return ignore();
    if (tensor.spec.collective.encodes()) return StartDecoding(tensor, entry, out);
  }
  SliceDone(tensor, entry.slice, entry.rank_count, entry.length_bytes, out);
}

void Rounds::StartDecoding(AgentTensor& tensor, const wire::Result& entry, Effects& out) {
  const ActiveRound round(tensor);
  const uint64_t ticket = reductions_->BeginDecoding({.tensor = tensor.index,
                                                      .round = tensor.active_round(),
                                                      .slice = entry.slice,
                                                      .rank_count = entry.rank_count,
                                                      .length_bytes = entry.length_bytes});
  tensor.slice_states.Set(entry.slice.value(), SliceState::kDecoding);
  out.push_back(
      DecodeSlice{.ticket = ticket,
                  .encoding = tensor.travel_encoding(),
                  .source = round.BytesOf(entry.slice, Memory::kArrivals, entry.travel_bytes),
                  .target = round.BytesOf(entry.slice, Memory::kResult, entry.length_bytes)});
}

void Rounds::OnDecoded(uint64_t ticket, bool is_sound, Effects& out) {
  const std::optional<Decoding> decoded = reductions_->EndDecoding(ticket);
  if (!decoded) return;
  AgentTensor& tensor = tensors_->At(decoded->tensor);
  const uint32_t s = decoded->slice.value();
  if (tensor.state == TensorState::kFailed || decoded->round != tensor.active_round() ||
      tensor.slice_states[s] != SliceState::kDecoding) {
    return;  // The tensor has failed meanwhile.
  }
  if (is_sound) {
    return SliceDone(tensor, decoded->slice, decoded->rank_count, decoded->length_bytes, out);
  }
  // The slice is cut as in the present view, also while a newer one is fenced.
  const view::ViewAggregator& owner =
      views_->present()->aggregators[tensor.slices[s].owner.value()];
  failures_->ReportAndFail("aggregator '" + owner.name + "' sent a result of slice " +
                               std::to_string(s) + " of tensor '" + tensor.spec.name +
                               "' that is no " +
                               std::string(EncodingName(tensor.spec.collective.encoding)) +
                               " encoding of " + Counted(decoded->length_bytes, "byte"),
                           out);
}

void Rounds::SliceDone(AgentTensor& tensor, SliceIndex slice, uint32_t ranks_summed,
                       uint32_t length_bytes, Effects& out) {
  const ActiveRound round(tensor);
  Partial& partial = tensor.partial;
  if (partial.lengths.empty()) partial.lengths.assign(tensor.spec.part_count(), 0);
  const bool holds = round.WillHold(slice);
  if (holds) {
    if (round.CopiesOwn(slice) && !round.IsPrivate(slice)) {
      out.push_back(CopyOwn{round.BytesOf(slice, round.Source(), length_bytes)});
    }
    if (partial.have.empty()) partial.have.assign(tensor.slices.size(), false);
    partial.have[slice.value()] = true;
    ++partial.have_count;
    if (length_bytes > 0) {
      const uint32_t part = round.PartOf(slice);
      const uint64_t end = length_bytes + tensor.spec.collective.offset_in_part(
                                              tensor.slices[slice.value()].offset_bytes);
      partial.lengths[part] = std::max(partial.lengths[part], end);
    }
    out.push_back(SliceArrived{round.BytesOf(slice, Memory::kResult, length_bytes)});
  }
  if (!tensor.finish() || holds) {
    partial.sum_epoch = SumEpoch(tensor);
    partial.ranks_summed = std::max(partial.ranks_summed, ranks_summed);
  }
  SliceOver(tensor, slice, out);
}

void Rounds::SliceOver(AgentTensor& tensor, SliceIndex slice, Effects& out) {
  tensor.slice_states.Set(slice.value(), SliceState::kDone);
  if (tensor.slice_states.AreOver()) RoundDone(tensor, out);
}

void Rounds::RoundDone(AgentTensor& tensor, Effects& out) {
  if (tensor.round_state() == RoundState::kFinishingHeld) {
    // The other nodes have the result now. Our contribution to the next round may overwrite its
    // slots.
    tensor.ResumeOpenRound();
    tensor.ResetSlices();
    Queue(tensor, out);
  } else if (tensor.disagreement) {
    Abort(tensor, Status::kMismatch, tensor.disagreement->text, out);
  } else {
    tensor.held = {.round = tensor.open_round(),
                   .sum_epoch = tensor.partial.sum_epoch,
                   .ranks_summed = tensor.partial.ranks_summed,
                   .lengths = tensor.partial.lengths,
                   .left_out = tensor.left_out};
    tensor.aborted_from = Round{0};
    ++counters_->rounds_completed;
    out.push_back(CompletionOf(tensor));
    tensors_->OpenNextRound(tensor);
  }
  quiesce_->TryAnswer(out);
}

CompleteRound Rounds::CompletionOf(const AgentTensor& tensor) {
  return {.tensor = tensor.index,
          .round = tensor.held.round,
          .status = Status::kOk,
          .ranks_summed = tensor.held.ranks_summed,
          .sum_epoch = tensor.held.sum_epoch,
          .lengths = tensor.held.lengths,
          .left_out = tensor.held.left_out};
}

void Rounds::Abort(AgentTensor& tensor, Status status, const std::string& text, Effects& out) {
  const Round round = tensor.open_round();
  // A mismatch is known only when every rank here has pushed the round, or the round has gone on
  // without the rest.
  const bool none_comes_late = tensor.left_out.empty();
  if (status == Status::kMismatch && none_comes_late) {
    tensor.aborted_from = Round{0};
  } else if (tensor.aborted_from == Round{0}) {
    tensor.aborted_from = round;
  }
  tensor.held = {.round = round, .sum_epoch = Epoch{0}, .ranks_summed = 0};
  ++counters_->rounds_aborted;
  out.push_back(
      CompleteRound{.tensor = tensor.index, .round = round, .status = status, .text = text});
  tensors_->OpenNextRound(tensor);
}

}  // namespace talweg::pipeline
