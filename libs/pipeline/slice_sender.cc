// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/slice_sender.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "libs/base/bytes.h"
#include "libs/base/check.h"
#include "libs/wire/round_kind.h"

namespace talweg::pipeline {
namespace {

// A frame announces as many written slices as the link carries in a millisecond, so that their
// owner can sum them while later ones are still on their way. Fewer share a frame with what leaves
// after them. A frame wakes its receiver, and over a fast link, or none, that is what costs.
constexpr uint64_t kAnnounceBytesMax = kMiB;
constexpr uint64_t kAnnounceBytesFirst = 256 * kKiB;  // While the link's speed is not known.

uint64_t AnnounceBytes(schedule::Reach reach, uint64_t link_bytes_per_ms) {
  if (reach == schedule::Reach::kMemory) return kAnnounceBytesMax;
  if (link_bytes_per_ms == 0) return kAnnounceBytesFirst;
  return std::min(link_bytes_per_ms, kAnnounceBytesMax);
}

uint64_t WrittenBytes(const Send& send) {
  const auto& entries = std::get<std::vector<wire::Contribute>>(send.entries);
  uint64_t bytes = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].form == wire::Form::kWritten) bytes += send.sources[i].length_bytes;
  }
  return bytes;
}

}  // namespace

void SliceSender::Flush(int64_t now_ns, Effects& out) {
  Sends sends;
  for (const Reduction& reduced : reductions_->TakeReady()) {
    AgentTensor& tensor = tensors_->At(reduced.tensor);
    if (IsIn(SliceState::kReduced, tensor, reduced.round, reduced.slice)) {
      if (tensor.travels_encoded()) {
        queue_->Depart(reduced.owner, reduced.cost_bytes, reduced.travel_bytes, now_ns);
      }
      SendSlice(tensor, reduced.slice, reduced.travel_bytes, sends, out);
    } else {  // The tensor has failed meanwhile.
      GiveBack(reduced, now_ns);
    }
  }
  const auto wanted = [this](const schedule::QueuedSlice& queued) { return IsWanted(queued); };
  while (reductions_->bytes() < config_->reduce_bytes_max) {
    const std::optional<schedule::QueuedSlice> queued = queue_->Take(now_ns, wanted);
    if (!queued) break;
    Dispatch(tensors_->At(queued->tensor), queued->slice, sends, out);
  }
  for (auto& [connection, send] : sends) {
    const SliceBytes& sent = send.sources.front();
    const view::Slice& place = tensors_->At(sent.tensor).slices[sent.slice.value()];
    send.more_wait = queue_->WaitingCount(place.owner) > 0;
    out.push_back(std::move(send));
  }
}

bool SliceSender::IsIn(SliceState state, const AgentTensor& tensor, Round round,
                       SliceIndex slice) const {
  return round == tensor.active_round() && slice.value() < tensor.slices.size() &&
         tensor.slice_states[slice.value()] == state;
}

bool SliceSender::IsWanted(const schedule::QueuedSlice& queued) {
  AgentTensor& tensor = tensors_->At(queued.tensor);
  // The slice's round may have ended without it.
  if (!IsIn(SliceState::kQueued, tensor, queued.round, queued.slice)) return false;
  if (rounds_->MaySend(tensor)) return true;
  // Another owner of the tensor is away. The slice is queued again when all have agreed again.
  tensor.slice_states.Set(queued.slice.value(), SliceState::kIdle);
  return false;
}

void SliceSender::Dispatch(AgentTensor& tensor, SliceIndex slice, Sends& sends, Effects& out) {
  const ActiveRound round(tensor);
  const bool is_private = round.IsPrivate(slice);
  const bool has_bytes = round.CostOf(slice) > 0;
  if (has_bytes && !tensor.finish() && (tensor.reduces() || is_private)) {
    StartReduction(tensor, slice, out);
  } else if (!is_private) {
    SendSlice(tensor, slice, round.CostOf(slice), sends, out);
  } else if (tensor.given.disagreement.empty()) {
    rounds_->SliceDone(tensor, slice, round.GivingRanks(slice), 0, out);
  } else {
    rounds_->SliceOver(tensor, slice, out);  // The round ends without a result.
  }
}

void SliceSender::StartReduction(AgentTensor& tensor, SliceIndex slice, Effects& out) {
  const ActiveRound round(tensor);
  const bool is_final = round.IsPrivate(slice);
  const bool is_charged = !is_final || tensor.travel == Travel::kNone;
  const uint32_t length_bytes = round.GivenLength(slice);
  const Memory target = is_final ? Memory::kResult : Memory::kSendBuffer;
  const uint64_t ticket = reductions_->Begin({.tensor = tensor.index,
                                              .round = tensor.active_round(),
                                              .slice = slice,
                                              .owner = tensor.slices[slice.value()].owner,
                                              .length_bytes = length_bytes,
                                              .cost_bytes = is_charged ? round.CostOf(slice) : 0,
                                              .is_final = is_final});
  tensor.slice_states.Set(slice.value(), SliceState::kReducing);
  out.push_back(ReduceSlice{.ticket = ticket,
                            .target = round.BytesOf(slice, target, length_bytes),
                            .inputs = round.Givers(slice),
                            .rank_count = round.GivingRanks(slice),
                            .is_final = is_final});
}

void SliceSender::GiveBack(const Reduction& reduced, int64_t now_ns) {
  if (reduced.is_final || !tensors_->At(reduced.tensor).spec.collective.encodes()) {
    queue_->ReturnCredit(reduced.owner, reduced.cost_bytes, now_ns);
  } else {
    queue_->Depart(reduced.owner, reduced.cost_bytes, 0, now_ns);
  }
}

void SliceSender::OnReduced(uint64_t ticket, std::optional<uint32_t> travel_bytes, int64_t now_ns,
                            Effects& out) {
  std::optional<Reduction> reduced = reductions_->End(ticket);
  if (!reduced) return;
  AgentTensor& tensor = tensors_->At(reduced->tensor);
  if (!IsIn(SliceState::kReducing, tensor, reduced->round, reduced->slice)) {
    GiveBack(*reduced, now_ns);  // The tensor has failed.
  } else if (reduced->is_final) {
    GiveBack(*reduced, now_ns);
    rounds_->SliceDone(tensor, reduced->slice, ActiveRound(tensor).GivingRanks(reduced->slice),
                       reduced->length_bytes, out);
  } else {
    TALWEG_CHECK(travel_bytes.has_value() == tensor.travels_encoded());
    reduced->travel_bytes = travel_bytes.value_or(reduced->length_bytes);
    tensor.slice_states.Set(reduced->slice.value(), SliceState::kReduced);
    reductions_->AddReady(*reduced);
  }
}

wire::Contribute SliceSender::EntryOf(const AgentTensor& tensor, SliceIndex slice,
                                      uint32_t travel_bytes) const {
  const ActiveRound round(tensor);
  wire::Contribute entry{.key = tensor.key,
                         .round = tensor.active_round(),
                         .slice = slice,
                         .mode = wire::ModeOf(tensor.kind()),
                         .form = round.FormOf(slice, travel_bytes),
                         .wants_result = round.WantsResult(slice),
                         .priority = tensor.priority};
  if (tensor.finish()) {
    entry.sum_epoch = tensor.finish()->sum_epoch;
  } else {
    entry.signature = tensor.given.signature;
  }
  if (wire::CarriesData(entry.form)) {
    entry.length_bytes = round.GivenLength(slice);
    entry.travel_bytes = travel_bytes;
    entry.rank_count = round.RanksGiven(slice);
  }
  return entry;
}

void SliceSender::SendSlice(AgentTensor& tensor, SliceIndex slice, uint32_t travel_bytes,
                            Sends& sends, Effects& out) {
  const view::Slice& place = tensor.slices[slice.value()];
  const Owner& owner = links_->At(place.owner);
  TALWEG_CHECK(owner.state == OwnerState::kReady);
  const ActiveRound round(tensor);
  const wire::Contribute entry = EntryOf(tensor, slice, travel_bytes);
  const SliceBytes source = round.BytesOf(slice, round.Source(), entry.travel_bytes);
  tensor.slice_states.Set(slice.value(), SliceState::kSent);
  ++counters_->contributions_sent;
  counters_->contribution_bytes_sent += entry.travel_bytes;

  Send& send = sends[owner.connection];
  if (send.connection != owner.connection) {
    send = {.connection = owner.connection,
            .type = wire::FrameType::kContribute,
            .job = views_->present()->job,
            .epoch = views_->present()->epoch,
            .entries = std::vector<wire::Contribute>{}};
  }
  std::get<std::vector<wire::Contribute>>(send.entries).push_back(entry);
  send.sources.push_back(source);
  send.texts.push_back(entry.form == wire::Form::kDisagreement ? tensor.given.disagreement : "");
  if (entry.form != wire::Form::kWritten) return;
  wire::RemoteRef target = tensor.owners.at(place.owner).slot;
  target.address += tensor.spec.collective.travel_offset(place.slot_offset_bytes);
  out.push_back(WriteSlice{owner.connection, source, target});
  // Announce them now if another slice of this length would be too much.
  if (WrittenBytes(send) + entry.travel_bytes <=
      AnnounceBytes(links_->ReachOf(place.owner), queue_->LinkBytesPerMs())) {
    return;
  }
  send.more_wait = queue_->WaitingCount(place.owner) > 0;
  out.push_back(std::move(send));
  sends.erase(owner.connection);
}

void SliceSender::ForgetOwner(AggregatorIndex owner) {
  queue_->Close(owner);
  reductions_->Forget(owner);
  for (const std::unique_ptr<AgentTensor>& tensor : tensors_->all()) tensor->LoseOwner(owner);
}

void SliceSender::OnRefused(AggregatorIndex from, const wire::Refused& entry, Effects& out) {
  ++counters_->refused[static_cast<size_t>(entry.reason)];
  const std::string text = "aggregator '" + links_->NameOf(from) + "' refused a contribution (" +
                           wire::RefusedReasonName(entry.reason) + "): " + entry.text;
  // A newer view, or the tensor's Failed, is on its way and deals with the contribution.
  const bool is_dealt_with = entry.reason == wire::RefusedReason::kWrongEpoch ||
                             entry.reason == wire::RefusedReason::kNotAMember ||
                             entry.reason == wire::RefusedReason::kPoisoned ||
                             views_->phase() == Phase::kFencing;
  const AgentTensor* const tensor = tensors_->Find(entry.key);
  const bool is_open =
      tensor != nullptr && IsIn(SliceState::kSent, *tensor, entry.round, entry.slice);
  if (is_dealt_with || !is_open) {  // The refused one was a repetition of a contribution that was
                                    // taken.
    out.push_back(Log{true, text});
    return;
  }
  // Otherwise the round would never end.
  failures_->ReportAndFail(text, out);
}

}  // namespace talweg::pipeline
