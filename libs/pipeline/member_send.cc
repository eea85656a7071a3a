// SPDX-License-Identifier: Apache-2.0
// A round of a tensor: from the queue to the owners, and its results.
#include <algorithm>
#include <utility>

#include "libs/base/check.h"
#include "libs/base/mutation.h"
#include "libs/pipeline/member.h"

namespace talweg::pipeline {
namespace {

// As many written slices are announced at once as the link carries in a millisecond, so that their
// owner may sum them while later ones are still on their way; fewer share a frame with what leaves
// behind them. A frame wakes its receiver: over a fast link, or none, that is what costs.
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

bool Member::MaySend(const Tensor& tensor) const {
  return (phase_ == Phase::kReporting || phase_ == Phase::kActive) &&
         tensor.state == TensorState::kOpen &&
         TALWEG_MUTATION(decision_not_awaited, !tensor.awaits_decision, true) &&
         (tensor.finish || tensor.contributed);
}

bool Member::Reduces(const Tensor& tensor) const { return ranks_.size() > 1 || tensor.staged; }

wire::Form Member::FormOf(const Tensor& tensor, SliceIndex slice) const {
  bool has_bytes = true;
  if (tensor.finish) {
    has_bytes = tensor.finish->sources[slice.value()] == view_->IndexOf(config_.self)->value();
  } else if (tensor.spec.op == Op::kCopy) {
    has_bytes = tensor.root_member == config_.self;
  }
  if (!has_bytes) return wire::Form::kEmpty;
  return tensor.slices[slice.value()].length_bytes <= wire::kInlineBytesMax ? wire::Form::kInline
                                                                            : wire::Form::kWritten;
}

bool Member::WantsResult(const Tensor& tensor, SliceIndex slice) const {
  if (!tensor.finish) return true;
  if (tensor.finish->round == tensor.held.round) return false;
  return tensor.partial.have.empty() || !tensor.partial.have[slice.value()];
}

SliceBytes Member::BytesOf(const Tensor& tensor, SliceIndex slice, Memory memory) const {
  const Slice& place = tensor.slices[slice.value()];
  return {.tensor = tensor.index,
          .round = tensor.active_round(),
          .slice = slice,
          .memory = memory,
          .offset_bytes = place.offset_bytes,
          .length_bytes = place.length_bytes};
}

void Member::QueueSlices(Tensor& tensor, Effects& out) {
  if (!MaySend(tensor)) return;
  if (!tensor.finish && tensor.root_gone) {
    FailTensorWith(tensor, Status::kAborted,
                   "tensor '" + tensor.spec.name +
                       "': the rank that it was broadcast from (local rank " +
                       std::to_string(tensor.root_local_rank.value()) + " of node " +
                       std::to_string(tensor.root_member.node.value()) +
                       ") is gone; broadcast under another name from a rank that is there",
                   out);
    return;
  }
  std::map<AggregatorIndex, uint64_t> part_bytes;
  for (const Slice& slice : tensor.slices) part_bytes[slice.owner] += slice.length_bytes;
  for (uint32_t i = 0; i < tensor.slices.size(); ++i) {
    if (tensor.slice_states[i] != SliceState::kIdle) continue;
    const Slice& slice = tensor.slices[i];
    const uint64_t whole = std::max<uint64_t>(part_bytes.at(slice.owner), 1);
    tensor.slice_states[i] = SliceState::kQueued;
    queue_.Push({.owner = slice.owner,
                 .priority = tensor.priority,
                 .order = tensor.order,
                 .position = static_cast<uint32_t>(slice.slot_offset_bytes *
                                                   schedule::QueuedSlice::kWhole / whole),
                 .tensor = tensor.key,
                 .slice = SliceIndex{i},
                 .cost_bytes = static_cast<uint32_t>(
                     wire::CreditCost(FormOf(tensor, SliceIndex{i}), slice.length_bytes))});
  }
}

void Member::Flush(int64_t now_ns, Effects& out) {
  if (phase_ != Phase::kReporting && phase_ != Phase::kActive) return;
  for (auto& [index, owner] : owners_) {
    if (owner.state == OwnerState::kReady) SendDeclares(owner, out);
  }
  std::map<ConnectionId, Send> sends;
  for (const Reduce& reduce : std::exchange(reduced_, {})) {
    Tensor& tensor = *At(reduce.tensor);
    if (reduce.round == tensor.active_round() && reduce.slice.value() < tensor.slices.size() &&
        tensor.slice_states[reduce.slice.value()] == SliceState::kReduced) {
      SendSlice(tensor, reduce.slice, sends, out);
    } else {  // The tensor has failed meanwhile.
      queue_.ReturnCredit(reduce.owner, reduce.length_bytes, now_ns);
    }
  }
  const auto wanted = [this](const schedule::QueuedSlice& queued) {
    Tensor& tensor = *At(tensor_by_key_.at(queued.tensor));
    if (queued.slice.value() >= tensor.slices.size() ||
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
    Tensor& tensor = *At(tensor_by_key_.at(queued->tensor));
    const bool reduces = !tensor.finish && FormOf(tensor, queued->slice) != wire::Form::kEmpty &&
                         (Reduces(tensor) || standalone());
    if (reduces) {
      StartReduce(tensor, queued->slice, out);
    } else {
      SendSlice(tensor, queued->slice, sends, out);
    }
  }
  for (auto& [connection, send] : sends) out.push_back(std::move(send));
  // Of the batch of events before this, any may have ended the last open round.
  TryQuiesce(out);
}

void Member::StartReduce(Tensor& tensor, SliceIndex slice, Effects& out) {
  const uint64_t ticket = next_ticket_++;
  const bool is_final = standalone();
  ReduceSlice reduce{
      .ticket = ticket,
      .target = BytesOf(tensor, slice, is_final ? Memory::kResult : Memory::kSendBuffer),
      .is_final = is_final};
  if (tensor.spec.op == Op::kCopy) {
    reduce.inputs.push_back(tensor.root_local_rank);
  } else {
    for (uint32_t i = 0; i < ranks_.size(); ++i) reduce.inputs.push_back(LocalRank{i});
  }
  const uint32_t length_bytes = reduce.target.length_bytes;
  reduces_[ticket] = {tensor.index, tensor.active_round(), slice,
                      tensor.slices[slice.value()].owner, length_bytes};
  reducing_bytes_ += length_bytes;
  tensor.slice_states[slice.value()] = SliceState::kReducing;
  out.push_back(std::move(reduce));
}

void Member::OnReduced(uint64_t ticket, int64_t now_ns, Effects& out) {
  const auto it = reduces_.find(ticket);
  if (it == reduces_.end()) return;
  const Reduce reduce = it->second;
  reducing_bytes_ -= reduce.length_bytes;
  reduces_.erase(it);
  Tensor& tensor = *At(reduce.tensor);
  if (reduce.round != tensor.active_round() || reduce.slice.value() >= tensor.slices.size() ||
      tensor.slice_states[reduce.slice.value()] != SliceState::kReducing) {
    queue_.ReturnCredit(reduce.owner, reduce.length_bytes,
                        now_ns);  // The tensor has failed meanwhile.
    return;
  }
  if (standalone()) {
    queue_.ReturnCredit(reduce.owner, reduce.length_bytes, now_ns);
    SliceDone(tensor, reduce.slice,
              tensor.spec.op == Op::kCopy ? 1 : static_cast<uint32_t>(ranks_.size()), out);
    return;
  }
  tensor.slice_states[reduce.slice.value()] = SliceState::kReduced;
  reduced_.push_back(reduce);
}

void Member::SendSlice(Tensor& tensor, SliceIndex slice, std::map<ConnectionId, Send>& sends,
                       Effects& out) {
  const Slice& place = tensor.slices[slice.value()];
  const Owner& owner = owners_.at(place.owner);
  TALWEG_CHECK(owner.state == OwnerState::kReady);
  wire::Contribute entry{.key = tensor.key, .round = tensor.active_round(), .slice = slice};
  entry.form = FormOf(tensor, slice);
  entry.wants_result = WantsResult(tensor, slice);
  const bool has_bytes = entry.form != wire::Form::kEmpty;
  Memory memory = Reduces(tensor) ? Memory::kSendBuffer : Memory::kContribution;
  if (tensor.finish) {
    memory = Memory::kResult;
    entry.mode = wire::Mode::kCopy;
    entry.sum_epoch = tensor.finish->sum_epoch;
    const bool is_held = tensor.finish->round == tensor.held.round;
    if (has_bytes) {
      entry.rank_count = is_held ? tensor.held.ranks_summed : tensor.partial.ranks_summed;
    }
  } else if (tensor.spec.op == Op::kCopy) {
    entry.mode = wire::Mode::kCopy;
    entry.rank_count = has_bytes ? 1 : 0;
  } else {
    entry.mode = wire::Mode::kSum;
    entry.rank_count = static_cast<uint32_t>(ranks_.size());
  }
  const SliceBytes source = BytesOf(tensor, slice, memory);
  tensor.slice_states[slice.value()] = SliceState::kSent;
  ++counters_.contributions_sent;
  if (has_bytes) counters_.contribution_bytes_sent += place.length_bytes;

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
  if (entry.form != wire::Form::kWritten) return;
  wire::RemoteRef target = tensor.owners.at(place.owner).slot;
  target.address += place.slot_offset_bytes;
  out.push_back(WriteSlice{owner.connection, source, target});
  // Would another one like this be too much?
  if (WrittenBytes(send) + place.length_bytes <=
      AnnounceBytes(ReachOf(owner), queue_.LinkBytesPerMs())) {
    return;
  }
  out.push_back(std::move(send));
  sends.erase(owner.connection);
}

void Member::SliceDone(Tensor& tensor, SliceIndex slice, uint32_t ranks_summed, Effects& out) {
  const uint32_t s = slice.value();
  if (WantsResult(tensor, slice)) {
    Partial& partial = tensor.partial;
    if (partial.have.empty()) partial.have.assign(tensor.slices.size(), false);
    partial.have[s] = true;
    ++partial.have_count;
    partial.sum_epoch = tensor.finish ? tensor.finish->sum_epoch : view_->epoch;
    partial.ranks_summed = ranks_summed;
    out.push_back(SliceArrived{BytesOf(tensor, slice, Memory::kResult)});
  }
  tensor.slice_states[s] = SliceState::kDone;
  if (++tensor.done_count ==
      TALWEG_MUTATION(visible_slice_by_slice, tensor.slices.size(), size_t{1}))
    RoundDone(tensor, out);
}

void Member::RoundDone(Tensor& tensor, Effects& out) {
  if (tensor.finish && tensor.finish->round == tensor.held.round) {
    // The others have it now too; our contribution to the next may overwrite its slots.
    tensor.finish.reset();
    ResetSlices(tensor);
    QueueSlices(tensor, out);
    TryQuiesce(out);
    return;
  }
  tensor.held = {.round = tensor.open_round(),
                 .sum_epoch = tensor.partial.sum_epoch,
                 .ranks_summed = tensor.partial.ranks_summed};
  tensor.aborted_from = Round{0};
  ++counters_.rounds_completed;
  out.push_back(CompleteRound{.tensor = tensor.index,
                              .round = tensor.held.round,
                              .status = Status::kOk,
                              .ranks_summed = tensor.held.ranks_summed,
                              .sum_epoch = tensor.held.sum_epoch});
  OpenNextRound(tensor);
  TryQuiesce(out);
}

void Member::AbortRound(Tensor& tensor, const std::string& text, Effects& out) {
  const Round round = tensor.open_round();
  if (tensor.aborted_from == Round{0}) tensor.aborted_from = round;
  tensor.held = {.round = TALWEG_MUTATION(abort_not_held, round, tensor.held.round),
                 .sum_epoch = Epoch{0},
                 .ranks_summed = 0};
  ++counters_.rounds_aborted;
  out.push_back(CompleteRound{
      .tensor = tensor.index, .round = round, .status = Status::kAborted, .text = text});
  OpenNextRound(tensor);
}

void Member::ResetSlices(Tensor& tensor) {
  tensor.slice_states.assign(tensor.slices.size(), SliceState::kIdle);
  tensor.done_count = 0;
}

void Member::OpenNextRound(Tensor& tensor) {
  half_pushed_.erase(tensor.index);
  tensor.pushed.assign(tensor.pushed.size(), false);
  tensor.pushed_count = 0;
  tensor.contributed = false;
  tensor.finish.reset();
  tensor.partial = {};
  ResetSlices(tensor);
}

void Member::ForgetReduces() {
  reduces_.clear();
  reduced_.clear();
  reducing_bytes_ = 0;
}

void Member::CheckInvariants() const {
  for (const std::unique_ptr<Tensor>& tensor : tensors_) {
    const auto pushed = std::count(tensor->pushed.begin(), tensor->pushed.end(), true);
    TALWEG_CHECK(tensor->pushed_count == static_cast<uint32_t>(pushed));
    TALWEG_CHECK(tensor->contributed == (tensor->pushed_count == ranks_.size()));
    TALWEG_CHECK(half_pushed_.contains(tensor->index) ==
                 (tensor->pushed_count > 0 && !tensor->contributed));
    TALWEG_CHECK(tensor->slice_states.size() == tensor->slices.size());
    const auto done =
        std::count(tensor->slice_states.begin(), tensor->slice_states.end(), SliceState::kDone);
    TALWEG_CHECK(tensor->done_count == static_cast<uint32_t>(done));
    TALWEG_CHECK(tensor->done_count == 0 || tensor->done_count < tensor->slices.size());
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
        TALWEG_CHECK(state == SliceState::kIdle);
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
