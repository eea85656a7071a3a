// SPDX-License-Identifier: Apache-2.0
// Connections to aggregators, and what comes through them.
#include <algorithm>
#include <limits>

#include "libs/pipeline/agent_core.h"
#include "libs/view/placement.h"

namespace talweg::pipeline {

namespace {

Status StatusOf(wire::DeclaredStatus status) {
  switch (status) {
    case wire::DeclaredStatus::kOk: return Status::kOk;
    case wire::DeclaredStatus::kMismatch: return Status::kMismatch;
    case wire::DeclaredStatus::kOverBudget: return Status::kOverBudget;
    case wire::DeclaredStatus::kInvalid: return Status::kInvalid;
    case wire::DeclaredStatus::kAborted: return Status::kAborted;
  }
  return Status::kInvalid;
}

Status StatusOf(wire::FailedCode code) {
  switch (code) {
    case wire::FailedCode::kMismatch: return Status::kMismatch;
    case wire::FailedCode::kOverBudget: return Status::kOverBudget;
    case wire::FailedCode::kAborted: return Status::kAborted;
    case wire::FailedCode::kInvalid: return Status::kInvalid;
    case wire::FailedCode::kJobFailed: break;
  }
  return Status::kJobFailed;
}

}  // namespace

Owner* AgentCore::FindOwner(ConnectionId connection) {
  if (connection.value() == 0) return nullptr;
  for (auto& [index, owner] : owners_) {
    if (owner.connection == connection) return &owner;
  }
  return nullptr;
}

const std::string& AgentCore::OwnerName(const Owner& owner) const {
  return newest_view()->aggregators[owner.index.value()].name;
}

void AgentCore::OnConnected(ConnectionId connection, int64_t /*now_ns*/, Effects& out) {
  Owner* owner = FindOwner(connection);
  if (owner == nullptr || owner->state != OwnerState::kConnecting) return;
  owner->state = OwnerState::kGreeting;
  const view::View& view = *newest_view();
  out.push_back(
      Send{.connection = connection,
           .type = wire::FrameType::kHello,
           .job = view.job,
           .epoch = view.epoch,
           .entries = std::vector<wire::Hello>{{.member = config_.self,
                                                .rank_count = config_.rank_count,
                                                .view_digest = view::PlacementDigest(view),
                                                .job_name = config_.job_name,
                                                .node_name = config_.node_name}}});
}

void AgentCore::BackOff(Owner& owner, int64_t now_ns) {
  if (owner.state == OwnerState::kReady) {
    if (phase_ != Phase::kFencing) ForgetSlicesOf(owner.index);
    owner.unready_since_ns = now_ns;
  }
  owner.connection = ConnectionId{0};
  owner.state = OwnerState::kBackoff;
  owner.backoff_ns =
      std::clamp(owner.backoff_ns * 2, config_.reconnect_first_ns, config_.reconnect_max_ns);
  owner.retry_at_ns = now_ns + owner.backoff_ns;
  Schedule(owner.retry_at_ns);
}

void AgentCore::OnDisconnected(ConnectionId connection, const std::string& reason, int64_t now_ns,
                               Effects& out) {
  Owner* owner = FindOwner(connection);
  if (owner == nullptr) return;
  out.push_back(Log{true, "connection to aggregator '" + OwnerName(*owner) + "' of job '" +
                              config_.job_name + "' broke: " + reason});
  owner->trouble = reason;
  BackOff(*owner, now_ns);
}

void AgentCore::ForgetSlicesOf(AggregatorIndex owner) {
  queue_.Close(owner);
  for (const std::unique_ptr<AgentTensor>& tensor : tensors_) {
    const auto it = tensor->owners.find(owner);
    if (it == tensor->owners.end()) continue;
    it->second = {};
    if (tensor->state == TensorState::kOpen) tensor->state = TensorState::kDeclaring;
    for (size_t i = 0; i < tensor->slices.size(); ++i) {
      if (tensor->slices[i].owner == owner && tensor->slice_states[i] != SliceState::kDone &&
          tensor->slice_states[i] != SliceState::kExempt) {
        tensor->slice_states[i] = SliceState::kIdle;
      }
    }
  }
  for (auto it = reduces_.begin(); it != reduces_.end();) {
    if (it->second.owner == owner) {
      reducing_bytes_ -= it->second.length_bytes;
      it = reduces_.erase(it);
    } else {
      ++it;
    }
  }
  std::erase_if(reduced_, [owner](const Reduce& reduce) { return reduce.owner == owner; });
}

void AgentCore::OnFrame(ConnectionId connection, const wire::Frame& frame, int64_t now_ns,
                        Effects& out) {
  Owner* owner = FindOwner(connection);
  if (owner == nullptr || frame.header.job != newest_view()->job) {
    ++counters_.frames_ignored;
    return;
  }
  const Epoch epoch = frame.header.epoch;
  if (frame.header.type == wire::FrameType::kWelcome) return OnWelcome(*owner, frame, now_ns, out);
  if (frame.header.type == wire::FrameType::kFenceAck) {
    if (owner->state == OwnerState::kFencing && epoch == newest_view()->epoch) {
      OwnerAnswered(*owner, now_ns, out);
    } else {
      ++counters_.frames_ignored;
    }
    return;
  }
  // While fencing, what lies before a connection's FenceAck still counts.
  const bool fencing = phase_ == Phase::kFencing;
  const OwnerState expected = fencing ? OwnerState::kFencing : OwnerState::kReady;
  if (!view_ || owner->state != expected || epoch != view_->epoch) {
    ++counters_.frames_ignored;
    return;
  }
  if (!fencing && frame.header.credit_bytes > 0) {
    queue_.ReturnCredit(owner->index, frame.header.credit_bytes, now_ns);
  }
  // An entry may end the job, and with it the owners.
  const Owner from = *owner;
  const auto each = [&](const auto& entries, auto handle) {
    for (uint32_t i = 0; i < entries.size() && phase_ != Phase::kFailed; ++i) {
      handle(entries[i], i);
    }
  };
  if (const auto* results = std::get_if<std::vector<wire::Result>>(&frame.entries)) {
    each(*results, [&](const wire::Result& e, uint32_t i) { OnResult(from, e, i, out); });
  } else if (const auto* failed = std::get_if<std::vector<wire::Failed>>(&frame.entries)) {
    each(*failed, [&](const wire::Failed& e, uint32_t) { OnFailed(from, e, out); });
  } else if (const auto* refused = std::get_if<std::vector<wire::Refused>>(&frame.entries)) {
    each(*refused, [&](const wire::Refused& e, uint32_t) { OnRefused(from, e, out); });
  } else if (const auto* waiting = std::get_if<std::vector<wire::Waiting>>(&frame.entries)) {
    each(*waiting, [&](const wire::Waiting& e, uint32_t) { OnWaiting(from, e, now_ns, out); });
  } else if (fencing) {
    ++counters_.frames_ignored;
  } else if (const auto* declared = std::get_if<std::vector<wire::Declared>>(&frame.entries)) {
    each(*declared, [&](const wire::Declared& e, uint32_t) { OnDeclared(from, e, out); });
  } else if (const auto* decisions = std::get_if<std::vector<wire::Decision>>(&frame.entries)) {
    each(*decisions, [&](const wire::Decision& e, uint32_t) { OnDecision(from, e, out); });
  } else if (frame.header.type != wire::FrameType::kCredit) {
    ++counters_.frames_ignored;
  }
}

void AgentCore::OnWelcome(Owner& owner, const wire::Frame& frame, int64_t now_ns, Effects& out) {
  const auto* entries = std::get_if<std::vector<wire::Welcome>>(&frame.entries);
  if (owner.state != OwnerState::kGreeting || entries == nullptr || entries->size() != 1) {
    ++counters_.frames_ignored;
    return;
  }
  const wire::Welcome& welcome = entries->front();
  const std::string who = "aggregator '" + OwnerName(owner) + "'";
  switch (welcome.status) {
    case wire::WelcomeStatus::kOk:
      if (welcome.aggregator == owner.incarnation && frame.header.epoch == newest_view()->epoch) {
        owner.credit_bytes = std::min(welcome.credit_bytes, config_.credit_bytes_max);
        OwnerAnswered(owner, now_ns, out);
        return;
      }
      out.push_back(Log{true, who + " answered as another incarnation, or in epoch " +
                                  std::to_string(frame.header.epoch.value())});
      break;
    case wire::WelcomeStatus::kUnknownJob:
    case wire::WelcomeStatus::kNotInView:
      // It may not have heard of the view yet.
      owner.trouble = "it refused this agent: " + welcome.text;
      out.push_back(Log{true, who + " refused this agent for now: " + welcome.text});
      break;
    case wire::WelcomeStatus::kViewDiffers:
    case wire::WelcomeStatus::kVersion:
      ReportAndFail(who + " refused this agent: " + welcome.text, out);
      return;
  }
  out.push_back(Close{owner.connection, "refused"});
  BackOff(owner, now_ns);
}

void AgentCore::OnDeclared(const Owner& owner, const wire::Declared& entry, Effects& out) {
  const auto it = tensor_by_key_.find(entry.key);
  if (it == tensor_by_key_.end() || !At(it->second)->owners.contains(owner.index)) {
    ++counters_.frames_ignored;
    return;
  }
  AgentTensor& tensor = *At(it->second);
  if (tensor.state == TensorState::kFailed) return;
  if (entry.status != wire::DeclaredStatus::kOk) {
    FailTensorWith(tensor, StatusOf(entry.status), entry.text, out);
    CheckActive();
    TryQuiesce(out);
    return;
  }
  tensor.owners[owner.index] = {.agreed = true, .slot = entry.slot};
  // Until a rank here has been told, each view's primary says anew which round comes first: the
  // others may have had one aborted meanwhile.
  if (owner.index == tensor.primary && !tensor.announced) {
    tensor.held = {.round = entry.held, .sum_epoch = Epoch{0}, .ranks_summed = 0};
  }
  AgreementChanged(tensor, out);
}

void AgentCore::AgreementChanged(AgentTensor& tensor, Effects& out) {
  if (tensor.state != TensorState::kDeclaring && tensor.state != TensorState::kOpen) return;
  if (!tensor.agreed()) return;
  tensor.state = TensorState::kOpen;
  for (const PendingDeclare& pending : tensor.pending) {
    tensor.announced = true;
    out.push_back(DeclareReply{.local_rank = pending.local_rank,
                               .request = pending.request,
                               .status = Status::kOk,
                               .tensor = tensor.index,
                               .held = tensor.held.round});
  }
  tensor.pending.clear();
  QueueSlices(tensor, out);
}

void AgentCore::OnResult(const Owner& owner, const wire::Result& entry, uint32_t position,
                         Effects& out) {
  const auto ignore = [this] { ++counters_.results_ignored; };
  const auto it = tensor_by_key_.find(entry.key);
  if (it == tensor_by_key_.end()) return ignore();
  AgentTensor& tensor = *At(it->second);
  const uint32_t s = entry.slice.value();
  if (tensor.state == TensorState::kFailed || tensor.awaits_decision ||
      entry.round != tensor.active_round() || s >= tensor.slices.size() ||
      tensor.slice_states[s] != SliceState::kSent) {
    return ignore();
  }
  const view::Slice& slice = tensor.slices[s];
  if (slice.owner.value() >= view_->aggregators.size() ||
      view_->aggregators[slice.owner.value()].incarnation != owner.incarnation ||
      entry.sum_epoch != (tensor.finish ? tensor.finish->sum_epoch : view_->epoch)) {
    return ignore();
  }
  if (entry.length_bytes > slice.length_bytes) return ignore();
  if (entry.form == wire::Form::kDisagreement) {
    if (tensor.finish) return ignore();
    SliceDisagreed(
        tensor, entry.slice,
        std::string(reinterpret_cast<const char*>(entry.bytes.data()), entry.bytes.size()), out);
    return;
  }
  // What this node has given to a sum, or gets back, is as long as it was.
  const bool is_known = !tensor.finish && GivingRanks(tensor, entry.slice) > 0;
  const uint32_t length_bytes = entry.length_bytes;
  if (is_known && length_bytes != GivenLength(tensor, entry.slice)) return ignore();
  if (tensor.partial.ranks_summed > 0 && tensor.partial.ranks_summed != entry.rank_count) {
    ReportAndFail("aggregator '" + OwnerName(owner) + "' summed " +
                      std::to_string(entry.rank_count) + " ranks into slice " + std::to_string(s) +
                      " of tensor '" + tensor.spec.name + "', others " +
                      std::to_string(tensor.partial.ranks_summed),
                  out);
    return;
  }
  if (WantsResult(tensor, entry.slice)) {
    if (entry.form == wire::Form::kEmpty ||
        (entry.form == wire::Form::kInline && entry.bytes.size() != length_bytes)) {
      return ignore();
    }
    if (entry.form == wire::Form::kWritten) {
      counters_.result_bytes_written += length_bytes;
    } else {
      out.push_back(
          CopyInline{position, BytesOf(tensor, entry.slice, Memory::kResult, length_bytes)});
    }
    ++counters_.results_taken;
    counters_.result_bytes_taken += length_bytes;
  }
  SliceDone(tensor, entry.slice, entry.rank_count, length_bytes, out);
}

void AgentCore::OnFailed(const Owner& owner, const wire::Failed& entry, Effects& out) {
  if (entry.key == TensorKey{0} || entry.code == wire::FailedCode::kJobFailed) {
    ReportAndFail("aggregator '" + OwnerName(owner) + "' gave up job '" + config_.job_name +
                      "': " + entry.text,
                  out);
    return;
  }
  const auto it = tensor_by_key_.find(entry.key);
  if (it == tensor_by_key_.end()) {
    ++counters_.frames_ignored;
    return;
  }
  FailTensorWith(*At(it->second), StatusOf(entry.code), entry.text, out);
  CheckActive();
  TryQuiesce(out);
}

void AgentCore::OnRefused(const Owner& owner, const wire::Refused& entry, Effects& out) {
  ++counters_.refused[static_cast<size_t>(entry.reason)];
  const std::string text = "aggregator '" + OwnerName(owner) + "' refused a contribution (" +
                           wire::RefusedReasonName(entry.reason) + "): " + entry.text;
  // A newer view is on its way, or the tensor's Failed: the contribution is dealt with there.
  if (entry.reason == wire::RefusedReason::kWrongEpoch ||
      entry.reason == wire::RefusedReason::kNotAMember ||
      entry.reason == wire::RefusedReason::kPoisoned || phase_ == Phase::kFencing) {
    out.push_back(Log{true, text});
    return;
  }
  const auto it = tensor_by_key_.find(entry.key);
  const AgentTensor* tensor = it == tensor_by_key_.end() ? nullptr : At(it->second);
  const bool is_open = tensor != nullptr && entry.round == tensor->active_round() &&
                       entry.slice.value() < tensor->slices.size() &&
                       tensor->slice_states[entry.slice.value()] == SliceState::kSent;
  if (!is_open) {  // A repetition of what was taken before.
    out.push_back(Log{true, text});
    return;
  }
  // Its round would never end.
  ReportAndFail(text, out);
}

}  // namespace talweg::pipeline
