// SPDX-License-Identifier: Apache-2.0
// Section 6 of docs/protocol.md: a new view, fences, reports and decisions.
#include <algorithm>
#include <utility>

#include "libs/base/check.h"
#include "libs/pipeline/agent_core.h"

namespace talweg::pipeline {
namespace {

// Standalone, nothing is in flight to anybody: the limit is the reducer's.
constexpr uint64_t kUnlimitedCredit = ~uint64_t{0};
// Ranks agree on one of them at the end of a step: views rarely follow one another faster.
constexpr size_t kRecentViews = 16;

bool SameCut(const std::vector<view::Slice>& a, const std::vector<view::Slice>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const view::Slice& x, const view::Slice& y) {
                      return x.offset_bytes == y.offset_bytes && x.length_bytes == y.length_bytes;
                    });
}

// Which slices of `to` consist of bytes of slices of `from` that are had.
std::vector<bool> Recut(const std::vector<view::Slice>& from, const std::vector<bool>& have,
                        const std::vector<view::Slice>& to) {
  if (SameCut(from, to)) return have;
  std::vector<bool> result(to.size(), false);
  size_t i = 0;
  for (size_t k = 0; k < to.size(); ++k) {
    const uint64_t begin = to[k].offset_bytes;
    const uint64_t end = begin + to[k].length_bytes;
    while (i < from.size() && from[i].offset_bytes + from[i].length_bytes <= begin) ++i;
    bool covered = i < from.size();
    for (size_t j = i; j < from.size() && from[j].offset_bytes < end; ++j) {
      covered = covered && have[j];
    }
    result[k] = covered;
  }
  return result;
}

wire::FailedCode CodeOf(Status status) {
  switch (status) {
    case Status::kMismatch: return wire::FailedCode::kMismatch;
    case Status::kOverBudget: return wire::FailedCode::kOverBudget;
    case Status::kAborted: return wire::FailedCode::kAborted;
    case Status::kOk:
    case Status::kInvalid:
    case Status::kJobFailed: break;
  }
  return wire::FailedCode::kInvalid;
}

// Where the ranks belong that `numbers` counts so; up to the first that it does not know.
view::Group PlacesOf(const view::View& numbers, const std::vector<Rank>& ranks,
                     bool with_standbys) {
  view::Group group;
  for (const Rank rank : ranks) {
    const std::optional<MemberIndex> member = numbers.MemberOfRank(rank);
    if (!member || (numbers.members[member->value()].standby && !with_standbys)) break;
    group.push_back({numbers.members[member->value()].id.node,
                     LocalRank{rank.value() - numbers.RankBase(*member).value()}});
  }
  return group;
}

}  // namespace

std::string AgentCore::ViewProblem(const view::View& view) const {
  if (const std::string problem = view.Problem(); !problem.empty()) return problem;
  const view::View* newest = newest_view();
  if (newest != nullptr && newest->job != view.job) {
    return "it is of job " + std::to_string(view.job.value()) + ", this agent serves job " +
           std::to_string(newest->job.value());
  }
  if (view.members.size() > 1 && view.aggregators.empty()) {
    return "it has " + std::to_string(view.members.size()) +
           " members and no aggregator; start at least one";
  }
  const std::optional<MemberIndex> self = view.IndexOf(config_.self);
  if (self && view.members[self->value()].rank_count != config_.rank_count) {
    return "it says that node " + std::to_string(config_.self.node.value()) + " has " +
           std::to_string(view.members[self->value()].rank_count) + " ranks, but it has " +
           std::to_string(config_.rank_count);
  }
  return "";
}

void AgentCore::OnView(const view::View& view, int64_t now_ns, Effects& out) {
  if (phase_ == Phase::kFailed) return;
  const view::View* newest = newest_view();
  if (newest != nullptr && view.epoch <= newest->epoch) return;
  if (const std::string problem = ViewProblem(view); !problem.empty()) {
    ReportAndFail("the view of epoch " + std::to_string(view.epoch.value()) + " of job '" +
                      config_.job_name + "' cannot be used: " + problem,
                  out);
    return;
  }
  if (!view.IndexOf(config_.self)) {
    FailJobWith("node " + std::to_string(config_.self.node.value()) + " of job '" +
                    config_.job_name + "' is not in the view of epoch " +
                    std::to_string(view.epoch.value()) +
                    ": its agent was declared lost; start its ranks again",
                out);
    return;
  }
  std::erase_if(left_members_,
                [&view](const auto& left) { return !view.IndexOf(left.first).has_value(); });
  const bool enters_steps = newest != nullptr && IsStandbyIn(*newest) && !IsStandbyIn(view);
  if (!numbers_ || enters_steps) steps_base_ = view.steps;
  if (!numbers_) numbers_ = view;
  if (recent_views_.size() == kRecentViews) recent_views_.pop_front();
  recent_views_.push_back(view);
  next_view_ = view;
  phase_ = Phase::kFencing;
  LetRanksGo(out);  // A view ends the quiesce before it.
  phase_since_ns_ = now_ns;
  phase_notice_ns_ = now_ns + config_.waiting_first_ns;
  Schedule(phase_notice_ns_);
  queue_.Clear();
  ForgetReduces();

  std::map<Incarnation, Owner> old;
  for (auto& [index, owner] : owners_) old.emplace(owner.incarnation, owner);
  owners_.clear();
  for (uint32_t i = 0; i < view.aggregators.size(); ++i) {
    Owner owner;
    owner.index = AggregatorIndex{i};
    owner.incarnation = view.aggregators[i].incarnation;
    const auto it = old.find(owner.incarnation);
    const bool survives = it != old.end() && (it->second.state == OwnerState::kReady ||
                                              it->second.state == OwnerState::kFencing);
    if (survives) {
      owner = it->second;
      owner.index = AggregatorIndex{i};
      owner.state = OwnerState::kFencing;
      old.erase(it);
      SendBare(owner, wire::FrameType::kFence, out);
    }
    // Each view begins the time afresh: the scheduler has spoken.
    owner.unready_since_ns = now_ns;
    owner.trouble.clear();
    owners_.emplace(owner.index, owner);
  }
  for (const auto& [incarnation, owner] : old) {
    if (owner.connection.value() != 0) {
      out.push_back(Close{owner.connection, "a newer view"});
    }
  }
  for (auto& [index, owner] : owners_) {
    if (owner.state == OwnerState::kBackoff) ConnectTo(owner, out);
  }
  if (config_.unreachable_ns > 0) Schedule(now_ns + config_.unreachable_ns);
  if (owners_.empty()) Freeze(now_ns, out);
}

void AgentCore::ConnectTo(Owner& owner, Effects& out) {
  const view::ViewAggregator& aggregator = newest_view()->aggregators[owner.index.value()];
  owner.connection = ConnectionId{next_connection_++};
  owner.state = OwnerState::kConnecting;
  out.push_back(Connect{.connection = owner.connection,
                        .aggregator = owner.incarnation,
                        .name = aggregator.name,
                        .data_address = aggregator.data_address,
                        .host_id = aggregator.host_id});
}

schedule::Reach AgentCore::ReachOf(const Owner& owner) const {
  const std::string& host_id = newest_view()->aggregators[owner.index.value()].host_id;
  return !host_id.empty() && host_id == config_.host_id ? schedule::Reach::kMemory
                                                        : schedule::Reach::kLink;
}

void AgentCore::SendBare(const Owner& owner, wire::FrameType type, Effects& out) {
  out.push_back(Send{.connection = owner.connection,
                     .type = type,
                     .job = newest_view()->job,
                     .epoch = newest_view()->epoch});
}

void AgentCore::OwnerAnswered(Owner& owner, int64_t now_ns, Effects& out) {
  owner.state = OwnerState::kReady;
  owner.backoff_ns = 0;
  owner.trouble.clear();
  if (phase_ == Phase::kFencing) {
    for (const auto& [index, other] : owners_) {
      if (other.state != OwnerState::kReady) return;
    }
    Freeze(now_ns, out);
    return;
  }
  queue_.Open(owner.index, owner.credit_bytes, ReachOf(owner));
  DeclareAll(owner, out);
  SendReport(owner, out);
}

void AgentCore::Freeze(int64_t now_ns, Effects& out) {
  // Recut needs the old slices, so the tensors keep them until they are placed anew.
  view_ = std::exchange(next_view_, std::nullopt);
  phase_ = Phase::kReporting;
  phase_since_ns_ = now_ns;
  phase_notice_ns_ = now_ns + config_.waiting_first_ns;
  Schedule(phase_notice_ns_);
  for (const std::unique_ptr<AgentTensor>& tensor : tensors_) FreezeTensor(*tensor, out);
  for (auto& [index, owner] : owners_) {
    queue_.Open(index, owner.credit_bytes, ReachOf(owner));
    DeclareAll(owner, out);
    SendReport(owner, out);
  }
  if (standalone()) {
    queue_.Open(AggregatorIndex{0}, kUnlimitedCredit);
    for (const std::unique_ptr<AgentTensor>& tensor : tensors_) AgreementChanged(*tensor, out);
  }
  CheckActive();
  TryQuiesce(out);
}

void AgentCore::FreezeTensor(AgentTensor& tensor, Effects& out) {
  if (tensor.state == TensorState::kAllocating) return;
  // Acknowledgements of a Finish of what is held here mean nothing in another epoch; of a Finish
  // of the open round `partial` has what came.
  tensor.finish.reset();
  const std::vector<view::Slice> old_slices = std::move(tensor.slices);
  tensor.slices.clear();
  const Partial old_partial = std::exchange(tensor.partial, Partial{});
  tensor.disagreement.reset();
  tensor.awaits_decision = false;
  tensor.report.reset();
  PlaceTensor(tensor, out);
  if (tensor.state == TensorState::kFailed) return;
  tensor.state = TensorState::kDeclaring;
  if (standalone()) return;  // Nobody else has anything of the open round: it is done again here.
  if (old_partial.have_count > 0) {
    tensor.partial.have = Recut(old_slices, old_partial.have, tensor.slices);
    tensor.partial.have_count = static_cast<uint32_t>(
        std::count(tensor.partial.have.begin(), tensor.partial.have.end(), true));
    if (tensor.partial.have_count > 0) {
      tensor.partial.sum_epoch = old_partial.sum_epoch;
      tensor.partial.ranks_summed = old_partial.ranks_summed;
      tensor.partial.lengths = old_partial.lengths;
    }
  }
  // No rank here has been told which round comes first, so this member holds nothing of it: it goes
  // on from the others' round, which `Declared` names.
  if (!tensor.announced) return;
  tensor.awaits_decision = true;
  tensor.report = MakeReport(tensor);
}

void AgentCore::PlaceTensor(AgentTensor& tensor, Effects& out) {
  TALWEG_CHECK(view_.has_value());
  tensor.owners.clear();
  tensor.primary = view::PrimaryOwner(*view_, tensor.key);
  if (!view_->aggregators.empty()) tensor.owners[tensor.primary] = {};
  tensor.slices.clear();
  ResetSlices(tensor);
  // Where it fails the primary hears of it nevertheless, so that others who declare the name learn
  // it there.
  if (!Resolve(tensor, out)) return;
  const uint64_t slices_min =
      tensor.spec.bytes() / view_->slice_bytes_max + tensor.spec.part_count();
  if (slices_min <= wire::kTensorSlicesMax) {
    tensor.slices =
        view::Placement(*view_, tensor.key, tensor.spec.collective, tensor.group).slices();
  }
  if (tensor.slices.empty() || tensor.slices.size() > wire::kTensorSlicesMax) {
    tensor.slices.clear();
    FailTensorWith(
        tensor, Status::kInvalid,
        "tensor '" + tensor.spec.name + "' of " + FormatBytes(tensor.spec.bytes()) +
            " would have more than " + std::to_string(wire::kTensorSlicesMax) + " slices of " +
            FormatBytes(view_->slice_bytes_max) + "; use a slice size of at least " +
            FormatBytes(RoundUp(tensor.spec.bytes() / (wire::kTensorSlicesMax / 2) + 1, 64 * kKiB)),
        out);
    return;
  }
  if (!view_->aggregators.empty()) {
    for (const view::Slice& slice : tensor.slices) tensor.owners[slice.owner] = {};
  }
  ResolveInView(tensor);
  ResetSlices(tensor);
}

bool AgentCore::Resolve(AgentTensor& tensor, Effects& out) {
  if (tensor.resolved) return true;
  const view::View& numbers = *numbers_;
  const auto fail = [&](Rank rank) {
    FailTensorWith(tensor, Status::kInvalid,
                   "tensor '" + tensor.spec.name + "': there is no rank " +
                       std::to_string(rank.value()) + "; the job has ranks 0 to " +
                       std::to_string(numbers.RankCount() - 1),
                   out);
    return false;
  };
  tensor.group = PlacesOf(numbers, tensor.spec.ranks, tensor.spec.collective.side);
  if (tensor.group.size() < tensor.spec.ranks.size()) {
    return fail(tensor.spec.ranks[tensor.group.size()]);
  }
  // Standbys have the highest numbers, whatever their places.
  std::sort(tensor.group.begin(), tensor.group.end());
  tensor.in_group.assign(ranks_.size(), tensor.group.empty());
  for (const view::Place& place : tensor.group) {
    if (place.node == config_.self.node) tensor.in_group[place.local_rank.value()] = true;
  }
  tensor.in_group_count =
      static_cast<uint32_t>(std::count(tensor.in_group.begin(), tensor.in_group.end(), true));
  if (tensor.spec.collective.has_root()) {
    const Rank root{tensor.spec.root_rank};
    const std::optional<MemberIndex> member = numbers.MemberOfRank(root);
    if (!member) return fail(root);
    tensor.root_member = numbers.members[member->value()].id;
    tensor.root_local_rank = LocalRank{root.value() - numbers.RankBase(*member).value()};
  }
  tensor.resolved = true;
  return true;
}

void AgentCore::ResolveInView(AgentTensor& tensor) {
  std::optional<view::Place> root;
  if (tensor.spec.collective.has_root() && view_->IndexOf(tensor.root_member)) {
    root = view::Place{tensor.root_member.node, tensor.root_local_rank};
  }
  tensor.participation = view::Participation(*view_, tensor.spec.collective, tensor.group, root);
  if (tensor.spec.collective.ends_with_any_rank() && tensor.needed_members.empty()) {
    for (const view::Place& place : tensor.group) {
      const std::optional<MemberIndex> member = view_->IndexOf(place.node);
      if (member) tensor.needed_members.push_back(view_->members[member->value()].id);
    }
  }
  const bool one_is_gone = std::any_of(
      tensor.needed_members.begin(), tensor.needed_members.end(),
      [this](const view::MemberIdentity& id) { return !view_->IndexOf(id).has_value(); });
  tensor.is_dead = tensor.is_dead || one_is_gone || !tensor.participation.IsPossible();
}

// What others call the rank that ranks here call `root_rank`.
uint32_t AgentCore::RootInView(uint32_t root_rank) const {
  const std::optional<MemberIndex> told = numbers_->MemberOfRank(Rank{root_rank});
  // One that is there for nobody, so that they hear of it.
  if (!told) return std::max(std::min(root_rank, wire::kNoRank - 1), view_->NumberCount());
  const std::optional<MemberIndex> member = view_->IndexOf(numbers_->members[told->value()].id);
  if (!member) return wire::kNoRank;
  return view_->RankBase(*member).value() + root_rank - numbers_->RankBase(*told).value();
}

wire::Report AgentCore::MakeReport(const AgentTensor& tensor) const {
  wire::Report report;
  report.key = tensor.key;
  report.held = tensor.held.round;
  report.held_epoch = tensor.held.sum_epoch;
  report.contributed = tensor.contributed ? tensor.open_round() : tensor.held.round;
  // Else nobody has for others what they get.
  const bool has_for_all = tensor.spec.collective.all_get_all();
  if (has_for_all && tensor.partial.have_count > 0) {
    report.partial_epoch = tensor.partial.sum_epoch;
    report.slices.resize((tensor.slices.size() + 63) / 64);
    for (size_t i = 0; i < tensor.slices.size(); ++i) {
      if (tensor.partial.have[i]) report.slices[i / 64] |= uint64_t{1} << (i % 64);
    }
  }
  return report;
}

void AgentCore::SendReport(const Owner& owner, Effects& out) {
  std::vector<wire::Report> entries;
  for (const std::unique_ptr<AgentTensor>& tensor : tensors_) {
    if (tensor->awaits_decision && tensor->primary == owner.index) {
      entries.push_back(*tensor->report);
    }
  }
  Send send{.connection = owner.connection,
            .type = wire::FrameType::kReport,
            .job = view_->job,
            .epoch = view_->epoch};
  if (!entries.empty()) send.entries = std::move(entries);
  out.push_back(std::move(send));
}

void AgentCore::SendDeclares(Owner& owner, Effects& out) {
  Send send{.connection = owner.connection,
            .type = wire::FrameType::kDeclare,
            .job = view_->job,
            .epoch = view_->epoch};
  std::vector<wire::Declare> entries;
  std::vector<wire::Failed> failed;
  for (const TensorIndex index : std::exchange(owner.undeclared, {})) {
    const AgentTensor& tensor = *At(index);
    if (tensor.state == TensorState::kAllocating || !tensor.owners.contains(owner.index)) continue;
    const TensorSpec& spec = tensor.spec;
    const uint32_t root_rank = spec.collective.has_root() ? RootInView(spec.root_rank) : 0;
    entries.push_back({.key = tensor.key,
                       .name = spec.name,
                       .collective = spec.collective,
                       .group = tensor.group,
                       .root_rank = tensor.is_dead ? wire::kNoRank : root_rank,
                       .by_rank = GlobalRank(tensor.declared_by).value()});
    send.tensors.push_back(tensor.index);
    // This node contributes to it no more, and the others may not have heard why.
    if (tensor.state == TensorState::kFailed) {
      failed.push_back(
          {.key = tensor.key, .code = CodeOf(tensor.failed_status), .text = tensor.failed_text});
      wire::CutText(failed.back().text);
    }
  }
  if (entries.empty()) return;
  send.entries = std::move(entries);
  out.push_back(std::move(send));
  if (failed.empty()) return;
  out.push_back(Send{.connection = owner.connection,
                     .type = wire::FrameType::kFailed,
                     .job = view_->job,
                     .epoch = view_->epoch,
                     .entries = std::move(failed)});
}

void AgentCore::DeclareAll(Owner& owner, Effects& out) {
  for (const std::unique_ptr<AgentTensor>& tensor : tensors_)
    owner.undeclared.insert(tensor->index);
  SendDeclares(owner, out);
}

void AgentCore::DeclareAtOwners(const AgentTensor& tensor) {
  for (const auto& [index, agreement] : tensor.owners) {
    const auto it = owners_.find(index);
    if (it == owners_.end() || it->second.state != OwnerState::kReady) continue;
    it->second.undeclared.insert(tensor.index);
  }
}

std::string AgentCore::DecisionProblem(const AgentTensor& tensor,
                                       const wire::Decision& decision) const {
  const Round open = tensor.open_round();
  switch (decision.verdict) {
    case wire::Verdict::kRedo:
      return decision.round == open ? "" : "to do a round again that is not open here";
    case wire::Verdict::kAbort:
      if (decision.round == open) return "";
      return decision.round == tensor.held.round && tensor.held.sum_epoch == Epoch{0}
                 ? ""
                 : "to abort a round that is not open here";
    case wire::Verdict::kFinish: break;
  }
  if (decision.sources.size() != tensor.slices.size()) {
    return "to finish a round with " + std::to_string(decision.sources.size()) + " sources for " +
           std::to_string(tensor.slices.size()) + " slices";
  }
  if (decision.sum_epoch == Epoch{0}) return "to finish a round from sums of no epoch";
  if (decision.round == tensor.held.round) {
    return decision.sum_epoch == tensor.held.sum_epoch
               ? ""
               : "to finish a held round from sums of another epoch";
  }
  if (decision.round != open || !tensor.contributed) {
    return "to finish a round that this node has not contributed to";
  }
  const uint32_t self = view_->IndexOf(config_.self)->value();
  for (size_t i = 0; i < decision.sources.size(); ++i) {
    if (decision.sources[i] >= view_->members.size()) return "to finish from an unknown member";
    if (decision.sources[i] != self) continue;
    if (tensor.partial.have_count == 0 || !tensor.partial.have[i] ||
        tensor.partial.sum_epoch != decision.sum_epoch) {
      return "to finish from a slice that this node does not have";
    }
  }
  return "";
}

void AgentCore::OnDecision(const Owner& owner, const wire::Decision& decision, Effects& out) {
  const auto it = tensor_by_key_.find(decision.key);
  if (it == tensor_by_key_.end() || !At(it->second)->awaits_decision ||
      At(it->second)->primary != owner.index) {
    ++counters_.frames_ignored;
    return;
  }
  AgentTensor& tensor = *At(it->second);
  if (const std::string problem = DecisionProblem(tensor, decision); !problem.empty()) {
    ReportAndFail("aggregator '" + OwnerName(owner) + "' decided " + problem + ": tensor '" +
                      tensor.spec.name + "', round " + std::to_string(decision.round.value()) +
                      ", held round " + std::to_string(tensor.held.round.value()),
                  out);
    return;
  }
  if (AsksForGivenUp(tensor, decision)) {
    ReportAndFail("tensor '" + tensor.spec.name + "': the view changed while round " +
                      std::to_string(decision.round.value()) +
                      " was open, and what this node has contributed to it may be overwritten; in "
                      "a job that fails with any loss nothing is kept for that. Start the job "
                      "again, or give all its daemons --loss_policy=continue",
                  out);
    return;
  }
  tensor.awaits_decision = false;
  tensor.report.reset();
  switch (decision.verdict) {
    case wire::Verdict::kRedo:
      ++counters_.redos;
      ResetSlices(tensor);
      tensor.disagreement.reset();
      tensor.partial = Partial{};
      break;
    case wire::Verdict::kFinish:
      ++counters_.finishes;
      BeginFinish(tensor, decision);
      break;
    case wire::Verdict::kAbort:
      if (decision.round == tensor.open_round()) {
        AbortRound(tensor, Status::kAborted, decision.text, out);
      } else {
        // It is over here already. What this node has of the next, of slices that only it has to do
        // with, is done again.
        tensor.partial = {};
      }
      break;
  }
  QueueSlices(tensor, out);
  CheckActive();
  TryQuiesce(out);
}

bool AgentCore::AsksForGivenUp(const AgentTensor& tensor, const wire::Decision& decision) const {
  if (!config_.one_view) return false;
  switch (decision.verdict) {
    case wire::Verdict::kRedo: return tensor.contributed;
    case wire::Verdict::kFinish: return true;
    case wire::Verdict::kAbort: return false;
  }
  return true;
}

void AgentCore::BeginFinish(AgentTensor& tensor, const wire::Decision& decision) {
  tensor.finish = decision;
  ResetSlices(tensor);
  if (decision.round == tensor.held.round || tensor.partial.sum_epoch != decision.sum_epoch) {
    tensor.partial = {};
  }
}

void AgentCore::CheckActive() {
  if (phase_ != Phase::kReporting) return;
  for (const std::unique_ptr<AgentTensor>& tensor : tensors_) {
    if (tensor->awaits_decision) return;
  }
  phase_ = Phase::kActive;
}

}  // namespace talweg::pipeline
