// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/agent_core.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "libs/base/check.h"
#include "libs/base/fingerprint.h"

namespace talweg::pipeline {
namespace {

constexpr size_t kRanksShown = 8;

std::string SpecText(const TensorSpec& spec) {
  std::string text = Describe(spec.collective);
  if (spec.collective.has_root()) {
    text += (spec.collective.gives == Share::kRoot ? " from rank " : " to rank ") +
            std::to_string(spec.root_rank);
  }
  if (spec.ranks.empty()) return text;
  text += " among ranks";
  for (size_t i = 0; i < spec.ranks.size() && i < kRanksShown; ++i) {
    text += (i == 0 ? " " : ", ") + std::to_string(spec.ranks[i].value());
  }
  return text + (spec.ranks.size() > kRanksShown ? ", ..." : "");
}

}  // namespace

const char* StatusName(Status status) {
  switch (status) {
    case Status::kOk: return "ok";
    case Status::kInvalid: return "invalid";
    case Status::kMismatch: return "mismatch";
    case Status::kOverBudget: return "over budget";
    case Status::kAborted: return "aborted";
    case Status::kJobFailed: return "job failed";
  }
  return "unknown";
}

const char* PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kForming: return "forming";
    case Phase::kFencing: return "fencing";
    case Phase::kReporting: return "reporting";
    case Phase::kActive: return "active";
    case Phase::kFailed: return "failed";
  }
  return "unknown";
}

AgentCore::AgentCore(const AgentCoreConfig& config)
    : config_(config),
      next_tick_ns_(std::numeric_limits<int64_t>::max()),
      ranks_(config.rank_count) {
  TALWEG_CHECK(config.rank_count > 0);
}

const AgentTensor* AgentCore::FindTensor(TensorKey key) const {
  const auto it = tensor_by_key_.find(key);
  return it == tensor_by_key_.end() ? nullptr : tensors_[it->second.value()].get();
}

AgentTensor* AgentCore::At(TensorIndex index) {
  return index.value() < tensors_.size() ? tensors_[index.value()].get() : nullptr;
}

bool AgentCore::standalone() const {
  return view_ && view_->members.size() == 1 && view_->aggregators.empty();
}

Rank AgentCore::GlobalRank(LocalRank rank) const {
  if (!numbers_) return Rank{rank.value()};
  const MemberIndex self = *numbers_->IndexOf(config_.self);
  return Rank{numbers_->RankBase(self).value() + rank.value()};
}

std::string AgentCore::RankText(LocalRank rank) const {
  std::string text = "rank " + std::to_string(GlobalRank(rank).value()) + " (local rank " +
                     std::to_string(rank.value()) + " of node " +
                     std::to_string(config_.self.node.value());
  if (rank.value() < ranks_.size() && ranks_[rank.value()].pid != 0) {
    text += ", pid " + std::to_string(ranks_[rank.value()].pid);
  }
  return text + ")";
}

void AgentCore::Schedule(int64_t at_ns) { next_tick_ns_ = std::min(next_tick_ns_, at_ns); }

void AgentCore::OnJobFailed(const std::string& text, int64_t /*now_ns*/, Effects& out) {
  FailJobWith(text, out);
}

void AgentCore::OnLocalFailure(const std::string& text, int64_t /*now_ns*/, Effects& out) {
  ReportAndFail("node " + std::to_string(config_.self.node.value()) + " cannot go on: " + text,
                out);
}

void AgentCore::OnMemberLeft(const view::MemberIdentity& id, const std::string& text) {
  left_members_[id.node] = text;
}

void AgentCore::OnRankJoined(LocalRank rank, uint32_t pid, int64_t /*now_ns*/, Effects& out) {
  if (rank.value() >= ranks_.size()) return;
  LocalRankState& state = ranks_[rank.value()];
  if (state.left) {
    out.push_back(FailRank{rank, RankText(rank) + " has already left job '" + config_.job_name +
                                     "'; a new process needs a new job"});
    return;
  }
  state.joined = true;
  state.pid = pid;
}

void AgentCore::OnRankLeft(LocalRank rank, bool clean, const std::string& text, int64_t /*now_ns*/,
                           Effects& out) {
  if (rank.value() >= ranks_.size() || !ranks_[rank.value()].joined || ranks_[rank.value()].left) {
    return;
  }
  ranks_[rank.value()].left = true;
  if (!clean) {
    ReportAndFail(RankText(rank) + " of job '" + config_.job_name + "' was lost: " + text, out,
                  GlobalRank(rank));
  } else {
    const std::vector<TensorIndex> waiting(half_pushed_.begin(), half_pushed_.end());
    for (const TensorIndex index : waiting) CheckLeftRanks(*At(index), out);
    TryQuiesce(out);
  }
  CheckRanksDone(out);
}

void AgentCore::CheckRanksDone(Effects& out) {
  for (const LocalRankState& rank : ranks_) {
    if (rank.joined ? !rank.left : phase_ != Phase::kFailed) return;
  }
  out.push_back(RanksDone{});
}

void AgentCore::CheckLeftRanks(AgentTensor& tensor, Effects& out) {
  if (phase_ == Phase::kFailed || tensor.pushed_count == 0) return;
  uint32_t pusher = 0;
  while (!tensor.pushed[pusher]) ++pusher;
  for (uint32_t i = 0; i < ranks_.size(); ++i) {
    if (!ranks_[i].left || tensor.pushed[i] || !tensor.in_group[i]) continue;
    FailForLeft(tensor,
                RankText(LocalRank{i}) + " has left the job, but " + RankText(LocalRank{pusher}) +
                    " pushed round " + std::to_string(tensor.open_round().value()) +
                    " of tensor '" + tensor.spec.name + "', which needs " +
                    (NeedsAllRanks(tensor) ? "every rank" : "it"),
                out);
    return;
  }
}

bool AgentCore::NeedsAllRanks(const AgentTensor& tensor) const {
  if (tensor.spec.ranks.empty() || !view_) return true;
  uint64_t count = 0;
  for (const view::ViewMember& member : view_->members)
    count += member.standby ? 0 : member.rank_count;
  return tensor.spec.ranks.size() == count;
}

void AgentCore::FailForLeft(AgentTensor& tensor, const std::string& text, Effects& out) {
  if (NeedsAllRanks(tensor)) return ReportAndFail(text, out);
  FailTensorWith(tensor, Status::kAborted, text, out);
}

std::string AgentCore::SpecProblem(const TensorSpec& spec) const {
  if (spec.name.empty() || spec.name.size() > wire::kNameBytesMax) {
    return "a tensor's name has " + std::to_string(spec.name.size()) + " bytes; 1 to " +
           std::to_string(wire::kNameBytesMax) + " are allowed";
  }
  const std::string tensor = "tensor '" + spec.name + "': ";
  if (const std::string problem = talweg::Problem(spec.collective); !problem.empty()) {
    return tensor + problem;
  }
  if (spec.ranks.size() > wire::kGroupRanksMax) {
    return tensor + "a group has at most " + std::to_string(wire::kGroupRanksMax) + " ranks, not " +
           std::to_string(spec.ranks.size());
  }
  // A part is bounded first, so that the product stays in range.
  if (spec.collective.element_count > config_.tensor_bytes_max / DTypeSize(spec.collective.dtype) ||
      spec.bytes() > config_.tensor_bytes_max) {
    return tensor + SpecText(spec) + " is larger than " + FormatBytes(config_.tensor_bytes_max) +
           "; split it";
  }
  return GroupProblem(spec);
}

std::string AgentCore::GroupProblem(const TensorSpec& spec) const {
  const std::string tensor = "tensor '" + spec.name + "': ";
  const bool side = spec.collective.side;
  if (side && spec.ranks.empty()) {
    return tensor + "a side tensor is of a group: name the ranks that take part in it";
  }
  if (!side && IsStandby()) {
    return tensor + "node " + std::to_string(config_.self.node.value()) +
           " is a standby, whose ranks take part in side tensors only: say that they are ready "
           "(talweg_ready), and follow the view in which it is a full member (talweg_follow)";
  }
  const uint32_t job_ranks = !numbers_ ? 0 : side ? numbers_->NumberCount() : numbers_->RankCount();
  for (size_t i = 0; i < spec.ranks.size(); ++i) {
    if (i > 0 && spec.ranks[i - 1] >= spec.ranks[i]) {
      return tensor + "the ranks of a group are in ascending order, each once, and rank " +
             std::to_string(spec.ranks[i].value()) + " comes after rank " +
             std::to_string(spec.ranks[i - 1].value());
    }
    if (numbers_ && spec.ranks[i].value() >= job_ranks) {
      return tensor + "there is no rank " + std::to_string(spec.ranks[i].value()) +
             "; the job has ranks 0 to " + std::to_string(job_ranks - 1);
    }
  }
  if (!spec.collective.has_root() || spec.ranks.empty() ||
      std::binary_search(spec.ranks.begin(), spec.ranks.end(), Rank{spec.root_rank})) {
    return "";
  }
  return tensor + "its root is rank " + std::to_string(spec.root_rank) +
         ", which is not among the ranks that take part: " + SpecText(spec);
}

bool AgentCore::IsStandbyIn(const view::View& view) const {
  const std::optional<MemberIndex> self = view.IndexOf(config_.self);
  return self && view.members[self->value()].standby;
}

bool AgentCore::IsStandby() const { return numbers_ && IsStandbyIn(*numbers_); }

TensorSpec AgentCore::Normalized(TensorSpec spec) const {
  if (!spec.collective.has_root()) spec.root_rank = 0;
  if (spec.collective.side) return spec;  // It goes on naming them.
  std::vector<Rank> all;
  for (uint32_t i = 0; numbers_ && i < numbers_->RankCount(); ++i) all.push_back(Rank{i});
  // All ranks have no names where it does not matter which there are: joiners are among them.
  if (!spec.collective.needs_every_rank() && spec.ranks == all) spec.ranks.clear();
  if (spec.collective.needs_every_rank() && spec.ranks.empty()) spec.ranks = std::move(all);
  return spec;
}

void AgentCore::OnRankDeclare(LocalRank rank, uint32_t request, const TensorSpec& given,
                              int64_t /*now_ns*/, Effects& out) {
  if (rank.value() >= ranks_.size()) return;
  const auto refuse = [&](Status status, const std::string& text) {
    out.push_back(
        DeclareReply{.local_rank = rank, .request = request, .status = status, .text = text});
  };
  if (phase_ == Phase::kFailed) return refuse(Status::kJobFailed, failed_text_);
  const TensorSpec spec = Normalized(given);
  if (const std::string problem = SpecProblem(spec); !problem.empty()) {
    return refuse(Status::kInvalid, problem);
  }
  if (spec.collective.needs_every_rank() && spec.ranks.empty()) {
    return refuse(Status::kInvalid, "tensor '" + spec.name +
                                        "': the job has not begun, so that nobody knows its ranks");
  }
  if (!spec.ranks.empty() &&
      !std::binary_search(spec.ranks.begin(), spec.ranks.end(), GlobalRank(rank))) {
    return refuse(Status::kInvalid,
                  "tensor '" + spec.name + "': rank " + std::to_string(GlobalRank(rank).value()) +
                      " is not among the ranks that take part: " + SpecText(spec));
  }
  const auto it = tensor_by_key_.find(TensorKey{Fingerprint64(spec.name)});
  if (it == tensor_by_key_.end()) return AddTensor(rank, request, spec, out);
  AgentTensor& tensor = *tensors_[it->second.value()];
  if (tensor.spec.name != spec.name) {
    return refuse(Status::kInvalid, "tensors '" + tensor.spec.name + "' and '" + spec.name +
                                        "' have the same fingerprint; rename one of them");
  }
  if (tensor.failed_status != Status::kOk) return refuse(tensor.failed_status, tensor.failed_text);
  if (tensor.spec != spec) {
    Poison(tensor, rank, spec, out);
    return refuse(tensor.failed_status, tensor.failed_text);
  }
  tensor.pending.push_back({rank, request});
  if (tensor.state == TensorState::kOpen) AgreementChanged(tensor, out);
}

void AgentCore::AddTensor(LocalRank rank, uint32_t request, const TensorSpec& spec, Effects& out) {
  if (tensors_.size() >= config_.tensors_max) {
    out.push_back(DeclareReply{.local_rank = rank,
                               .request = request,
                               .status = Status::kOverBudget,
                               .text = "tensor '" + spec.name + "' would be one more than the " +
                                       std::to_string(config_.tensors_max) +
                                       " that this agent allows"});
    return;
  }
  auto tensor = std::make_unique<AgentTensor>();
  tensor->index = TensorIndex{static_cast<uint32_t>(tensors_.size())};
  tensor->key = TensorKey{Fingerprint64(spec.name)};
  tensor->spec = spec;
  tensor->declared_by = rank;
  tensor->pending.push_back({rank, request});
  tensor->pushed.resize(ranks_.size());
  tensor_by_key_[tensor->key] = tensor->index;
  out.push_back(AllocateTensor{tensor->index, spec});
  tensors_.push_back(std::move(tensor));
}

void AgentCore::StageContributions(TensorIndex index) {
  AgentTensor* tensor = At(index);
  if (tensor != nullptr && tensor->state == TensorState::kAllocating) tensor->staged = true;
}

void AgentCore::OnTensorAllocated(TensorIndex index, const std::string& text, int64_t /*now_ns*/,
                                  Effects& out) {
  AgentTensor* tensor = At(index);
  if (tensor == nullptr || tensor->state != TensorState::kAllocating) return;
  const bool placed = phase_ == Phase::kReporting || phase_ == Phase::kActive;
  tensor->state = TensorState::kDeclaring;
  if (!text.empty()) {
    FailTensorWith(*tensor, Status::kOverBudget, text, out);
    // The other nodes would wait for this one's contribution for ever.
    if (!standalone()) {
      ReportAndFail("node " + std::to_string(config_.self.node.value()) +
                        " has no memory for tensor '" + tensor->spec.name + "': " + text,
                    out);
    }
    return;
  }
  if (!placed) return;  // The view that comes will place it.
  PlaceTensor(*tensor, out);
  DeclareAtOwners(*tensor);
  AgreementChanged(*tensor, out);
}

void AgentCore::Poison(AgentTensor& tensor, LocalRank rank, const TensorSpec& spec, Effects& out) {
  FailTensorWith(tensor, Status::kMismatch,
                 "tensor '" + tensor.spec.name + "': rank " +
                     std::to_string(GlobalRank(tensor.declared_by).value()) + " declared " +
                     SpecText(tensor.spec) + ", rank " + std::to_string(GlobalRank(rank).value()) +
                     " declares " + SpecText(spec),
                 out);
  if (phase_ == Phase::kReporting || phase_ == Phase::kActive) DeclareAtOwners(tensor);
  CheckActive();
  TryQuiesce(out);
}

void AgentCore::FailTensorWith(AgentTensor& tensor, Status status, const std::string& text,
                               Effects& out) {
  if (tensor.state == TensorState::kFailed) return;
  tensor.state = TensorState::kFailed;
  tensor.awaits_decision = false;
  tensor.report.reset();
  GiveUp(tensor, status, text, out);
}

void AgentCore::GiveUp(AgentTensor& tensor, Status status, const std::string& text, Effects& out) {
  const bool anybody_waits = tensor.pushed_count > 0;
  const Round round = tensor.open_round();
  OpenNextRound(tensor);
  const bool is_known = tensor.failed_status != Status::kOk;
  tensor.failed_status = status;
  tensor.failed_text = text;
  if (is_known) return;
  for (const PendingDeclare& pending : tensor.pending) {
    out.push_back(DeclareReply{.local_rank = pending.local_rank,
                               .request = pending.request,
                               .status = status,
                               .text = text});
  }
  tensor.pending.clear();
  out.push_back(FailTensor{tensor.index, status, text});
  if (anybody_waits) {
    out.push_back(
        CompleteRound{.tensor = tensor.index, .round = round, .status = status, .text = text});
  }
}

void AgentCore::FailJobWith(const std::string& text, Effects& out) {
  if (phase_ == Phase::kFailed) return;
  phase_ = Phase::kFailed;
  failed_text_ = text;
  next_tick_ns_ = std::numeric_limits<int64_t>::max();
  queue_.Clear();
  ForgetReduces();
  quiesce_.reset();
  for (const std::unique_ptr<AgentTensor>& tensor : tensors_) {
    for (const PendingDeclare& pending : tensor->pending) {
      out.push_back(DeclareReply{.local_rank = pending.local_rank,
                                 .request = pending.request,
                                 .status = Status::kJobFailed,
                                 .text = text});
    }
    tensor->pending.clear();
  }
  out.push_back(FailJob{Status::kJobFailed, text});
  for (auto& [index, owner] : owners_) {
    if (owner.connection.value() != 0) out.push_back(Close{owner.connection, text});
  }
  owners_.clear();
}

void AgentCore::ReportAndFail(const std::string& text, Effects& out, std::optional<Rank> rank) {
  if (phase_ == Phase::kFailed) return;
  out.push_back(ReportLost{text, rank});
  FailJobWith(text, out);
}

void AgentCore::Leave(Effects& out) {
  if (phase_ == Phase::kFailed) return;
  for (const auto& [index, owner] : owners_) {
    if (owner.state == OwnerState::kReady) SendBare(owner, wire::FrameType::kGoodbye, out);
  }
  owners_.clear();
  FailJobWith(
      "the agent of node " + std::to_string(config_.self.node.value()) + " has left the job", out);
}

void AgentCore::OnPush(const Push& push, int64_t now_ns, Effects& out) {
  if (phase_ == Phase::kFailed) return;
  DoPush(push, now_ns, out);
}

void AgentCore::OnRankAtBoundary(LocalRank rank, uint64_t steps, int64_t /*now_ns*/, Effects& out) {
  if (rank.value() >= ranks_.size() || !quiesce_) return;
  ranks_[rank.value()].at_boundary = steps;
  TryQuiesce(out);
}

std::string AgentCore::PushProblem(const Push& push) const {
  if (push.tensor.value() >= tensors_.size() || !tensors_[push.tensor.value()]->announced) {
    return "pushed tensor " + std::to_string(push.tensor.value()) +
           ", which it has not been told of; declare it first";
  }
  const AgentTensor& tensor = *tensors_[push.tensor.value()];
  if (ranks_[push.rank.value()].at_boundary && !tensor.spec.collective.side) {
    return "pushed tensor '" + tensor.spec.name + "' while it waits at the end of step " +
           std::to_string(steps_base_ + *ranks_[push.rank.value()].at_boundary);
  }
  if (!tensor.in_group[push.rank.value()]) {
    return "pushed tensor '" + tensor.spec.name +
           "', which it takes no part in: " + SpecText(tensor.spec);
  }
  if (push.round != tensor.open_round()) {
    return "pushed round " + std::to_string(push.round.value()) + " of tensor '" +
           tensor.spec.name + "'; the next is " + std::to_string(tensor.open_round().value());
  }
  if (tensor.pushed[push.rank.value()]) {
    return "pushed tensor '" + tensor.spec.name + "' again before round " +
           std::to_string(push.round.value()) + " was taken";
  }
  const Collective& collective = tensor.spec.collective;
  if (!push.lengths.empty() && push.lengths.size() != tensor.spec.part_count()) {
    return "pushed tensor '" + tensor.spec.name + "' with " + std::to_string(push.lengths.size()) +
           " lengths for " + std::to_string(tensor.spec.part_count()) + " parts";
  }
  for (const uint32_t length : push.lengths) {
    if (length <= collective.part_bytes() && length % DTypeSize(collective.dtype) == 0) continue;
    return "pushed tensor '" + tensor.spec.name + "' with a part of " + std::to_string(length) +
           " bytes; a part has at most " + std::to_string(collective.part_bytes()) +
           ", in elements of " + std::to_string(DTypeSize(collective.dtype));
  }
  return "";
}

void AgentCore::TakeGiven(AgentTensor& tensor, const Push& push) {
  OpenContribution& given = tensor.given;
  const Collective& collective = tensor.spec.collective;
  const view::Participation& participation = tensor.participation;
  const bool is_first = tensor.pushed_count == 0;
  if (is_first) {
    given = {.signature = push.signature, .by = push.rank};
    given.lengths.assign(tensor.spec.part_count(), 0);
  }
  std::optional<std::pair<uint64_t, uint64_t>> lengths_differ;
  for (const view::Participation::LocalPart& rank :
       participation.RanksOf(*view_->IndexOf(config_.self))) {
    if (rank.local_rank != push.rank) continue;
    for (uint32_t part = 0; part < given.lengths.size(); ++part) {
      if (!participation.Gives(rank, part)) continue;
      const uint64_t length = push.lengths.empty() ? collective.part_bytes() : push.lengths[part];
      if (!is_first && !collective.copies() && given.lengths[part] != length) {
        lengths_differ = {given.lengths[part], length};
      }
      given.lengths[part] = length;
    }
  }
  if (is_first || !given.disagreement.empty()) return;
  if (given.signature == push.signature && !lengths_differ) {
    return;
  }
  const auto length = [&](bool first) -> std::optional<uint64_t> {
    if (!lengths_differ) return std::nullopt;
    return first ? lengths_differ->first : lengths_differ->second;
  };
  given.disagreement = RankText(given.by) + " gives " +
                       DescribeGiven(given.signature, length(true)) + ", " + RankText(push.rank) +
                       " gives " + DescribeGiven(push.signature, length(false));
}

void AgentCore::DoPush(const Push& push, int64_t now_ns, Effects& out) {
  if (push.rank.value() >= ranks_.size() || phase_ == Phase::kFailed) return;
  if (AgentTensor* tensor = At(push.tensor)) {
    if (tensor->failed_status != Status::kOk) {
      out.push_back(CompleteRound{.tensor = tensor->index,
                                  .round = push.round,
                                  .status = tensor->failed_status,
                                  .text = tensor->failed_text});
      return;
    }
    // The round was aborted before this rank came to it.
    if (tensor->aborted_from > Round{0} && push.round >= tensor->aborted_from &&
        push.round <= tensor->held.round) {
      out.push_back(CompleteRound{.tensor = tensor->index,
                                  .round = push.round,
                                  .status = Status::kAborted,
                                  .text = "round " + std::to_string(push.round.value()) +
                                          " of tensor '" + tensor->spec.name + "' was aborted"});
      return;
    }
  }
  if (const std::string problem = PushProblem(push); !problem.empty()) {
    out.push_back(FailRank{push.rank, RankText(push.rank) + " " + problem});
    return;
  }
  AgentTensor& tensor = *At(push.tensor);
  TakeGiven(tensor, push);
  tensor.pushed[push.rank.value()] = true;
  if (tensor.pushed_count++ == 0) {
    tensor.first_push_ns = now_ns;
    tensor.priority = push.priority;
    tensor.next_notice_ns = now_ns + config_.waiting_first_ns;
  }
  tensor.priority = std::max(tensor.priority, push.priority);
  if (tensor.pushed_count < tensor.in_group_count) {
    half_pushed_.insert(tensor.index);
    Schedule(tensor.next_notice_ns);
    CheckLeftRanks(tensor, out);
    return;
  }
  half_pushed_.erase(tensor.index);
  tensor.contributed = true;
  tensor.order = next_order_++;
  QueueSlices(tensor, out);
}

}  // namespace talweg::pipeline
