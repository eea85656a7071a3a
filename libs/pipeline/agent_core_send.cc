// SPDX-License-Identifier: Apache-2.0
// A round of a tensor: from the queue to the owners, and its results.
#include <algorithm>
#include <utility>

#include "libs/base/check.h"
#include "libs/pipeline/agent_core.h"

namespace talweg::pipeline {
namespace {

// As many written slices are announced at once as the link carries in a millisecond, so that their
// owner may sum them while later ones are still on their way; fewer share a frame with what leaves
// after them. A frame wakes its receiver: over a fast link, or none, that is what costs.
constexpr uint64_t kAnnounceBytesMax = kMiB;
constexpr uint64_t kAnnounceBytesFirst = 256 * kKiB;  // While the link is not known.

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

bool AgentCore::MaySend(const AgentTensor& tensor) const {
  return (phase_ == Phase::kReporting || phase_ == Phase::kActive) &&
         tensor.state == TensorState::kOpen && !tensor.awaits_decision &&
         (tensor.finish || tensor.contributed);
}

bool AgentCore::Reduces(const AgentTensor& tensor) const {
  return ranks_.size() > 1 || tensor.staged;
}

uint32_t AgentCore::PartOf(const AgentTensor& tensor, SliceIndex slice) {
  return tensor.spec.collective.part_at(tensor.slices[slice.value()].offset_bytes);
}

uint32_t AgentCore::LengthIn(const AgentTensor& tensor, SliceIndex slice, uint64_t part_bytes) {
  const view::Slice& place = tensor.slices[slice.value()];
  const uint64_t begin = tensor.spec.collective.offset_in_part(place.offset_bytes);
  return static_cast<uint32_t>(
      std::min<uint64_t>(part_bytes > begin ? part_bytes - begin : 0, place.length_bytes));
}

uint32_t AgentCore::GivenLength(const AgentTensor& tensor, SliceIndex slice) const {
  const uint32_t part = PartOf(tensor, slice);
  if (!tensor.finish) return LengthIn(tensor, slice, tensor.given.lengths[part]);
  const bool is_held = tensor.finish->round == tensor.held.round;
  const std::vector<uint64_t>& lengths = is_held ? tensor.held.lengths : tensor.partial.lengths;
  return LengthIn(tensor, slice, lengths[part]);
}

uint32_t AgentCore::GivingRanks(const AgentTensor& tensor, SliceIndex slice) const {
  return tensor.participation.GivingRanks(self(), PartOf(tensor, slice));
}

wire::Form AgentCore::FormOf(const AgentTensor& tensor, SliceIndex slice) const {
  bool has_bytes = true;
  if (tensor.finish) {
    has_bytes = tensor.finish->sources[slice.value()] == self().value();
  } else if (!tensor.given.disagreement.empty()) {
    return wire::Form::kDisagreement;
  } else {
    has_bytes = GivingRanks(tensor, slice) > 0;
  }
  if (!has_bytes) return wire::Form::kEmpty;
  return GivenLength(tensor, slice) <= wire::kInlineBytesMax ? wire::Form::kInline
                                                             : wire::Form::kWritten;
}

bool AgentCore::StaysHere(bool others_are_out) const {
  // A job of one node with aggregators is there to use them.
  return standalone() || (view_->members.size() > 1 && others_are_out);
}

bool AgentCore::IsPrivate(const AgentTensor& tensor, SliceIndex slice) const {
  return !tensor.finish && StaysHere(tensor.participation.IsPrivate(self(), PartOf(tensor, slice)));
}

bool AgentCore::CopiesOwn(const AgentTensor& tensor, SliceIndex slice) const {
  // What lies on a GPU comes back like everybody's.
  return !tensor.finish && !tensor.staged && tensor.spec.collective.copies() &&
         GivingRanks(tensor, slice) > 0 && WillHold(tensor, slice);
}

bool AgentCore::WantsResult(const AgentTensor& tensor, SliceIndex slice) const {
  if (!tensor.finish) return WillHold(tensor, slice) && !CopiesOwn(tensor, slice);
  if (tensor.finish->round == tensor.held.round) return false;
  return tensor.partial.have.empty() || !tensor.partial.have[slice.value()];
}

bool AgentCore::WillHold(const AgentTensor& tensor, SliceIndex slice) const {
  if (tensor.finish) return WantsResult(tensor, slice);
  return tensor.participation.Gets(self(), PartOf(tensor, slice));
}

SliceBytes AgentCore::BytesOf(const AgentTensor& tensor, SliceIndex slice, Memory memory,
                              uint32_t length_bytes) const {
  return {.tensor = tensor.index,
          .round = tensor.active_round(),
          .slice = slice,
          .memory = memory,
          .offset_bytes = tensor.slices[slice.value()].offset_bytes,
          .length_bytes = length_bytes};
}

uint32_t AgentCore::CostOf(const AgentTensor& tensor, SliceIndex slice) const {
  // There is no length where this member has no bytes of a round that is finished.
  const wire::Form form = FormOf(tensor, slice);
  return wire::CarriesData(form) ? wire::CreditCost(form, GivenLength(tensor, slice)) : 0;
}

void AgentCore::QueueSlices(AgentTensor& tensor, Effects& out) {
  if (!MaySend(tensor)) return;
  if (!tensor.finish && tensor.is_dead) {
    const bool lost_root = tensor.spec.collective.has_root() && !view_->IndexOf(tensor.root_member);
    GiveUp(
        tensor, Status::kAborted,
        "tensor '" + tensor.spec.name + "': " +
            (lost_root ? "its root (local rank " + std::to_string(tensor.root_local_rank.value()) +
                             " of node " + std::to_string(tensor.root_member.node.value()) + ")"
                       : "one of its ranks") +
            " is gone; go on under another name with ranks that are there",
        out);
    return;
  }
  // Nobody else would hear of it.
  if (!tensor.finish && !tensor.given.disagreement.empty() &&
      StaysHere(tensor.participation.member_count() == 1)) {
    return AbortRound(tensor, Status::kMismatch,
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
    const bool travels = !IsPrivate(tensor, SliceIndex{i}) || standalone();
    tensor.slice_states[i] = SliceState::kQueued;
    queue_.Push({.owner = slice.owner,
                 .priority = tensor.priority,
                 .order = tensor.order,
                 .position = static_cast<uint32_t>(slice.slot_offset_bytes *
                                                   schedule::QueuedSlice::kWhole / whole),
                 .tensor = tensor.key,
                 .round = tensor.active_round(),
                 .slice = SliceIndex{i},
                 .cost_bytes = travels ? CostOf(tensor, SliceIndex{i}) : 0});
  }
}

void AgentCore::Flush(int64_t now_ns, Effects& out) {
  if (phase_ != Phase::kReporting && phase_ != Phase::kActive) return;
  for (auto& [index, owner] : owners_) {
    if (owner.state == OwnerState::kReady) SendDeclares(owner, out);
  }
  std::map<ConnectionId, Send> sends;
  for (const Reduce& reduce : std::exchange(reduced_, {})) {
    AgentTensor& tensor = *At(reduce.tensor);
    if (reduce.round == tensor.active_round() && reduce.slice.value() < tensor.slices.size() &&
        tensor.slice_states[reduce.slice.value()] == SliceState::kReduced) {
      SendSlice(tensor, reduce.slice, sends, out);
    } else {  // The tensor has failed meanwhile.
      queue_.ReturnCredit(reduce.owner, reduce.cost_bytes, now_ns);
    }
  }
  const auto wanted = [this](const schedule::QueuedSlice& queued) {
    AgentTensor& tensor = *At(tensor_by_key_.at(queued.tensor));
    // Not of a round that has ended without it.
    if (queued.slice.value() >= tensor.slices.size() || queued.round != tensor.active_round() ||
        tensor.slice_states[queued.slice.value()] != SliceState::kQueued) {
      return false;
    }
    if (MaySend(tensor)) return true;
    // Another owner of the tensor is away: this slice is queued again when all have agreed again.
    tensor.slice_states[queued.slice.value()] = SliceState::kIdle;
    return false;
  };
  while (reducing_bytes_ < config_.reduce_bytes_max) {
    const std::optional<schedule::QueuedSlice> queued = queue_.Take(now_ns, wanted);
    if (!queued) break;
    AgentTensor& tensor = *At(tensor_by_key_.at(queued->tensor));
    const bool is_private = IsPrivate(tensor, queued->slice);
    const bool has_bytes = CostOf(tensor, queued->slice) > 0;
    if (has_bytes && !tensor.finish && (Reduces(tensor) || is_private)) {
      StartReduce(tensor, queued->slice, out);
    } else if (!is_private) {
      SendSlice(tensor, queued->slice, sends, out);
    } else if (tensor.given.disagreement.empty()) {
      SliceDone(tensor, queued->slice, GivingRanks(tensor, queued->slice), 0, out);
    } else {
      CountDone(tensor, queued->slice, out);  // The round ends without a result.
    }
  }
  for (auto& [connection, send] : sends) {
    const SliceBytes& sent = send.sources.front();
    const view::Slice& place = At(sent.tensor)->slices[sent.slice.value()];
    send.more_wait = queue_.WaitingCount(place.owner) > 0;
    out.push_back(std::move(send));
  }
  // Any event of the batch before this may have ended the last open round.
  TryQuiesce(out);
}

void AgentCore::StartReduce(AgentTensor& tensor, SliceIndex slice, Effects& out) {
  const uint64_t ticket = next_ticket_++;
  const bool is_final = IsPrivate(tensor, slice);
  const uint32_t part = PartOf(tensor, slice);
  const uint32_t length_bytes = GivenLength(tensor, slice);
  ReduceSlice reduce{
      .ticket = ticket,
      .target =
          BytesOf(tensor, slice, is_final ? Memory::kResult : Memory::kSendBuffer, length_bytes),
      .is_final = is_final};
  for (const view::Participation::LocalPart& rank : tensor.participation.RanksOf(self())) {
    if (tensor.participation.Gives(rank, part)) reduce.inputs.push_back(rank.local_rank);
  }
  reduces_[ticket] = {.tensor = tensor.index,
                      .round = tensor.active_round(),
                      .slice = slice,
                      .owner = tensor.slices[slice.value()].owner,
                      .length_bytes = length_bytes,
                      .cost_bytes = is_final && !standalone() ? 0 : length_bytes,
                      .is_final = is_final};
  reducing_bytes_ += length_bytes;
  tensor.slice_states[slice.value()] = SliceState::kReducing;
  out.push_back(std::move(reduce));
}

void AgentCore::OnReduced(uint64_t ticket, int64_t now_ns, Effects& out) {
  const auto it = reduces_.find(ticket);
  if (it == reduces_.end()) return;
  const Reduce reduce = it->second;
  reducing_bytes_ -= reduce.length_bytes;
  reduces_.erase(it);
  AgentTensor& tensor = *At(reduce.tensor);
  if (reduce.round != tensor.active_round() || reduce.slice.value() >= tensor.slices.size() ||
      tensor.slice_states[reduce.slice.value()] != SliceState::kReducing) {
    queue_.ReturnCredit(reduce.owner, reduce.cost_bytes, now_ns);  // The tensor has failed.
    return;
  }
  if (reduce.is_final) {
    queue_.ReturnCredit(reduce.owner, reduce.cost_bytes, now_ns);
    SliceDone(tensor, reduce.slice, GivingRanks(tensor, reduce.slice), reduce.length_bytes, out);
    return;
  }
  tensor.slice_states[reduce.slice.value()] = SliceState::kReduced;
  reduced_.push_back(reduce);
}

void AgentCore::SendSlice(AgentTensor& tensor, SliceIndex slice,
                          std::map<ConnectionId, Send>& sends, Effects& out) {
  const view::Slice& place = tensor.slices[slice.value()];
  const Owner& owner = owners_.at(place.owner);
  TALWEG_CHECK(owner.state == OwnerState::kReady);
  wire::Contribute entry{.key = tensor.key,
                         .round = tensor.active_round(),
                         .slice = slice,
                         .mode = tensor.finish || tensor.spec.collective.copies()
                                     ? wire::Mode::kCopy
                                     : wire::Mode::kSum,
                         .form = FormOf(tensor, slice),
                         .wants_result = WantsResult(tensor, slice),
                         .priority = tensor.priority};
  const bool has_bytes = wire::CarriesData(entry.form);
  Memory memory = Reduces(tensor) ? Memory::kSendBuffer : Memory::kContribution;
  if (has_bytes) entry.length_bytes = GivenLength(tensor, slice);
  if (tensor.finish) {
    memory = Memory::kResult;
    entry.sum_epoch = tensor.finish->sum_epoch;
    const bool is_held = tensor.finish->round == tensor.held.round;
    if (has_bytes) {
      entry.rank_count = is_held ? tensor.held.ranks_summed : tensor.partial.ranks_summed;
    }
  } else {
    entry.signature = tensor.given.signature;
    if (has_bytes) entry.rank_count = GivingRanks(tensor, slice);
  }
  const SliceBytes source = BytesOf(tensor, slice, memory, entry.length_bytes);
  tensor.slice_states[slice.value()] = SliceState::kSent;
  ++counters_.contributions_sent;
  counters_.contribution_bytes_sent += entry.length_bytes;

  Send& send = sends[owner.connection];
  if (send.connection != owner.connection) {
    send = {.connection = owner.connection,
            .type = wire::FrameType::kContribute,
            .job = view_->job,
            .epoch = view_->epoch,
            .entries = std::vector<wire::Contribute>{}};
  }
  std::get<std::vector<wire::Contribute>>(send.entries).push_back(entry);
  send.sources.push_back(source);
  send.texts.push_back(entry.form == wire::Form::kDisagreement ? tensor.given.disagreement : "");
  if (entry.form != wire::Form::kWritten) return;
  wire::RemoteRef target = tensor.owners.at(place.owner).slot;
  target.address += place.slot_offset_bytes;
  out.push_back(WriteSlice{owner.connection, source, target});
  // Would another one like this be too much?
  if (WrittenBytes(send) + entry.length_bytes <=
      AnnounceBytes(ReachOf(owner), queue_.LinkBytesPerMs())) {
    return;
  }
  send.more_wait = queue_.WaitingCount(place.owner) > 0;
  out.push_back(std::move(send));
  sends.erase(owner.connection);
}

void AgentCore::SliceDone(AgentTensor& tensor, SliceIndex slice, uint32_t ranks_summed,
                          uint32_t length_bytes, Effects& out) {
  Partial& partial = tensor.partial;
  if (partial.lengths.empty()) partial.lengths.assign(tensor.spec.part_count(), 0);
  const bool holds = WillHold(tensor, slice);
  if (holds) {
    if (CopiesOwn(tensor, slice) && !IsPrivate(tensor, slice)) {
      out.push_back(CopyOwn{BytesOf(tensor, slice,
                                    Reduces(tensor) ? Memory::kSendBuffer : Memory::kContribution,
                                    length_bytes)});
    }
    if (partial.have.empty()) partial.have.assign(tensor.slices.size(), false);
    partial.have[slice.value()] = true;
    ++partial.have_count;
    if (length_bytes > 0) {
      const uint32_t part = PartOf(tensor, slice);
      const uint64_t end = length_bytes + tensor.spec.collective.offset_in_part(
                                              tensor.slices[slice.value()].offset_bytes);
      partial.lengths[part] = std::max(partial.lengths[part], end);
    }
    out.push_back(SliceArrived{BytesOf(tensor, slice, Memory::kResult, length_bytes)});
  }
  if (!tensor.finish || holds) {
    partial.sum_epoch = tensor.finish ? tensor.finish->sum_epoch : view_->epoch;
    partial.ranks_summed = std::max(partial.ranks_summed, ranks_summed);
  }
  CountDone(tensor, slice, out);
}

void AgentCore::SliceDisagreed(AgentTensor& tensor, SliceIndex slice, std::string text,
                               Effects& out) {
  if (!tensor.disagreement || slice < tensor.disagreement->slice) {
    tensor.disagreement = {slice, std::move(text)};
  }
  CountDone(tensor, slice, out);
}

void AgentCore::CountDone(AgentTensor& tensor, SliceIndex slice, Effects& out) {
  tensor.slice_states[slice.value()] = SliceState::kDone;
  if (++tensor.done_count + tensor.exempt_count == tensor.slices.size()) RoundDone(tensor, out);
}

void AgentCore::RoundDone(AgentTensor& tensor, Effects& out) {
  if (tensor.finish && tensor.finish->round == tensor.held.round) {
    // The others have it now too; our contribution to the next may overwrite its slots.
    tensor.finish.reset();
    ResetSlices(tensor);
    QueueSlices(tensor, out);
    TryQuiesce(out);
    return;
  }
  if (tensor.disagreement) {
    AbortRound(tensor, Status::kMismatch, tensor.disagreement->text, out);
    TryQuiesce(out);
    return;
  }
  tensor.held = {.round = tensor.open_round(),
                 .sum_epoch = tensor.partial.sum_epoch,
                 .ranks_summed = tensor.partial.ranks_summed,
                 .lengths = tensor.partial.lengths};
  tensor.aborted_from = Round{0};
  ++counters_.rounds_completed;
  out.push_back(CompleteRound{.tensor = tensor.index,
                              .round = tensor.held.round,
                              .status = Status::kOk,
                              .ranks_summed = tensor.held.ranks_summed,
                              .sum_epoch = tensor.held.sum_epoch,
                              .lengths = tensor.held.lengths});
  OpenNextRound(tensor);
  TryQuiesce(out);
}

void AgentCore::AbortRound(AgentTensor& tensor, Status status, const std::string& text,
                           Effects& out) {
  const Round round = tensor.open_round();
  if (tensor.aborted_from == Round{0}) tensor.aborted_from = round;
  tensor.held = {.round = round, .sum_epoch = Epoch{0}, .ranks_summed = 0};
  ++counters_.rounds_aborted;
  out.push_back(
      CompleteRound{.tensor = tensor.index, .round = round, .status = status, .text = text});
  OpenNextRound(tensor);
}

void AgentCore::ResetSlices(AgentTensor& tensor) {
  tensor.slice_states.assign(tensor.slices.size(), SliceState::kIdle);
  tensor.done_count = 0;
  tensor.exempt_count = 0;
  if (tensor.spec.collective.gives != Share::kRow || !tensor.resolved || !view_) return;
  for (uint32_t i = 0; i < tensor.slices.size(); ++i) {
    if (tensor.participation.TakesPart(self(), PartOf(tensor, SliceIndex{i}))) continue;
    tensor.slice_states[i] = SliceState::kExempt;
    ++tensor.exempt_count;
  }
}

void AgentCore::OpenNextRound(AgentTensor& tensor) {
  half_pushed_.erase(tensor.index);
  tensor.pushed.assign(tensor.pushed.size(), false);
  tensor.pushed_count = 0;
  tensor.contributed = false;
  tensor.given = {};
  tensor.disagreement.reset();
  tensor.finish.reset();
  tensor.partial = {};
  ResetSlices(tensor);
}

void AgentCore::ForgetReduces() {
  reduces_.clear();
  reduced_.clear();
  reducing_bytes_ = 0;
}

void AgentCore::CheckInvariants() const {
  for (const std::unique_ptr<AgentTensor>& tensor : tensors_) {
    const auto pushed = std::count(tensor->pushed.begin(), tensor->pushed.end(), true);
    TALWEG_CHECK(tensor->pushed_count == static_cast<uint32_t>(pushed));
    TALWEG_CHECK(tensor->contributed == (tensor->resolved && tensor->in_group_count > 0 &&
                                         tensor->pushed_count == tensor->in_group_count));
    TALWEG_CHECK(half_pushed_.contains(tensor->index) ==
                 (tensor->pushed_count > 0 && !tensor->contributed));
    TALWEG_CHECK(tensor->slice_states.size() == tensor->slices.size());
    const auto done =
        std::count(tensor->slice_states.begin(), tensor->slice_states.end(), SliceState::kDone);
    TALWEG_CHECK(tensor->done_count == static_cast<uint32_t>(done));
    const auto exempt =
        std::count(tensor->slice_states.begin(), tensor->slice_states.end(), SliceState::kExempt);
    TALWEG_CHECK(tensor->exempt_count == static_cast<uint32_t>(exempt));
    TALWEG_CHECK(tensor->done_count == 0 ||
                 tensor->done_count + tensor->exempt_count < tensor->slices.size());
    const auto have = std::count(tensor->partial.have.begin(), tensor->partial.have.end(), true);
    TALWEG_CHECK(tensor->partial.have_count == static_cast<uint32_t>(have));
    // Results only of rounds that this node has contributed to, so that its slot was filled.
    TALWEG_CHECK(tensor->done_count == 0 || tensor->contributed || tensor->finish);
    TALWEG_CHECK(tensor->awaits_decision == tensor->report.has_value());
    TALWEG_CHECK(!(tensor->awaits_decision && tensor->finish));
    if (phase_ == Phase::kFailed) continue;
    for (size_t i = 0; i < tensor->slice_states.size(); ++i) {
      const SliceState state = tensor->slice_states[i];
      // Fenced: nothing leaves while a decision is awaited.
      if (tensor->awaits_decision && phase_ != Phase::kFencing) {
        TALWEG_CHECK(state == SliceState::kIdle || state == SliceState::kExempt);
      }
    }
  }
  uint64_t reducing_bytes = 0;
  for (const auto& [ticket, reduce] : reduces_) reducing_bytes += reduce.length_bytes;
  TALWEG_CHECK(reducing_bytes == reducing_bytes_);
  if (phase_ == Phase::kFencing || phase_ == Phase::kForming) {
    TALWEG_CHECK(queue_.waiting_count() == 0 && reduces_.empty());
  }
  for (const auto& [index, owner] : owners_) {
    TALWEG_CHECK(owner.index == index);
    TALWEG_CHECK((owner.connection == ConnectionId{0}) == (owner.state == OwnerState::kBackoff));
  }
}

}  // namespace talweg::pipeline
