// SPDX-License-Identifier: Apache-2.0
// Whom this member waits for, and for how long: sections 7 and 8 of docs/protocol.md.
#include <algorithm>
#include <limits>
#include <utility>

#include "libs/pipeline/agent_core.h"

namespace talweg::pipeline {
namespace {

// What a process that runs notices of time at the latest, while the scheduler is silent.
constexpr int64_t kSilenceTickNs = 1'000'000'000;
static_assert(2 * kSilenceTickNs <= AwakeTime::kGapMaxNs, "a tick may come late");

std::string MillisecondsText(uint64_t ns) { return std::to_string(ns / 1'000'000) + " ms"; }

bool Names(const wire::Waiting& entry, NodeRank node) {
  return std::count(entry.missing_nodes.begin(), entry.missing_nodes.end(), node.value()) > 0;
}

}  // namespace

void AgentCore::OnSchedulerSilent(int64_t now_ns) {
  if (scheduler_silent_ || phase_ == Phase::kFailed) return;
  CountSilence(now_ns);
  scheduler_silent_ = true;
  silent_ns_ = 0;
  if (now_ns >= decides_from_ns_) {
    undecided_ns_ = 0;
  } else if (!std::exchange(scheduler_relapsed_, true)) {
    undecided_ns_ += now_ns - answers_since_ns_;
  }
  silence_time_.Begin(now_ns);
  CountSilence(now_ns);
}

// Whoever has come back has given all fresh leases: by the end of a second one it has noticed that
// the first has lapsed.
void AgentCore::OnSchedulerAnswers(int64_t lease_ns, int64_t now_ns) {
  if (!scheduler_silent_) return;
  CountSilence(now_ns);
  scheduler_silent_ = false;
  answers_since_ns_ = now_ns;
  decides_from_ns_ = now_ns + 2 * lease_ns;
}

// What passes while this process is stopped is nobody's silence.
void AgentCore::CountSilence(int64_t now_ns) {
  if (!scheduler_silent_ && now_ns >= decides_from_ns_) scheduler_relapsed_ = false;
  if ((!scheduler_silent_ && !scheduler_relapsed_) || config_.unreachable_ns == 0) return;
  const int64_t passed_ns = silence_time_.Take(now_ns);
  if (scheduler_silent_) silent_ns_ += passed_ns;
  undecided_ns_ += passed_ns;
  const int64_t left_ns = scheduler_silent_ ? config_.unreachable_ns - silent_ns_ : 0;
  Schedule(now_ns + (left_ns > 0 ? std::min(left_ns, kSilenceTickNs) : kSilenceTickNs));
}

// By itself, whatever it was before.
bool AgentCore::SchedulerIsMissed() const {
  return scheduler_silent_ && config_.unreachable_ns > 0 && silent_ns_ >= config_.unreachable_ns;
}

bool AgentCore::SchedulerCannotDecide() const {
  return (scheduler_silent_ || scheduler_relapsed_) && config_.unreachable_ns > 0 &&
         undecided_ns_ >= config_.unreachable_ns;
}

bool AgentCore::RanksWait() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const LocalRankState& rank) { return rank.at_boundary.has_value(); });
}

// Running steps do not need the scheduler. A first view, the end of a quiesce, and the view that
// lets a standby into the steps nobody else can give; while it answers, it may.
bool AgentCore::CheckScheduler(int64_t now_ns, Effects& out) {
  CountSilence(now_ns);
  if (!scheduler_silent_ || !SchedulerCannotDecide()) return false;
  const bool is_forming = phase_ == Phase::kForming;
  const view::View* const view = newest_view();
  const bool enters_steps = ranks_ready_ && view != nullptr && IsStandbyIn(*view);
  if (!is_forming && !RanksWait() && !enters_steps) return false;
  const std::string what =
      is_forming     ? "job '" + config_.job_name + "' has not begun"
      : enters_steps ? "this standby is about to join the steps of job '" + config_.job_name + "'"
                     : "a member is about to join job '" + config_.job_name + "'";
  OnLocalFailure(what + (scheduler_relapsed_ ? ", and the scheduler comes and goes" : ""), now_ns,
                 out);
  return true;
}

// Who is dead is the scheduler's to say, for as long as it may take to say it. Whoever hears from
// neither must not wait for both.
bool AgentCore::CheckUnreachable(int64_t now_ns, Effects& out) {
  if (config_.unreachable_ns == 0) return false;
  for (const auto& [index, owner] : owners_) {
    if (owner.state == OwnerState::kReady) continue;
    const int64_t limit_ns = owner.unready_since_ns + config_.unreachable_ns;
    if (now_ns < limit_ns) {
      Schedule(limit_ns);
      continue;
    }
    ReportAndFail("node " + std::to_string(config_.self.node.value()) + " of job '" +
                      config_.job_name + "' has not reached aggregator '" + OwnerName(owner) +
                      "' for " + MillisecondsText(static_cast<uint64_t>(config_.unreachable_ns)) +
                      " (" + (owner.trouble.empty() ? "it does not answer" : owner.trouble) + ")",
                  out);
    return true;
  }
  return false;
}

// A member that `what` needs, and that has been away for as long as the scheduler, which could go
// on without it. One that is connected is alive: it is waited for.
bool AgentCore::CheckAbsent(const Owner& owner, const wire::Waiting& entry, const std::string& what,
                            Effects& out) {
  if (!SchedulerCannotDecide()) return false;
  const size_t count = std::min(entry.missing_nodes.size(), entry.absent_ns.size());
  for (size_t i = 0; i < count; ++i) {
    if (entry.absent_ns[i] < static_cast<uint64_t>(config_.unreachable_ns)) continue;
    ReportAndFail(what + " needs node " + std::to_string(entry.missing_nodes[i]) +
                      ", which has had no connection to aggregator '" + OwnerName(owner) +
                      "' for " + MillisecondsText(entry.absent_ns[i]) + ", and the scheduler " +
                      (scheduler_relapsed_ ? "comes and goes, and does" : "does") +
                      " not say what became of it",
                  out);
    return true;
  }
  return false;
}

// Whether something here cannot end without a word of `owner`.
bool AgentCore::WaitsFor(const Owner& owner) const {
  for (const std::unique_ptr<AgentTensor>& tensor : tensors_) {
    const auto agreement = tensor->owners.find(owner.index);
    if (agreement == tensor->owners.end() || tensor->state == TensorState::kFailed) continue;
    if (tensor->awaits_decision && tensor->primary == owner.index) return true;
    if (!agreement->second.agreed && !tensor->pending.empty()) return true;
    if (!tensor->contributed && !tensor->finish) continue;
    for (size_t i = 0; i < tensor->slices.size(); ++i) {
      const SliceState state = tensor->slice_states[i];
      if (tensor->slices[i].owner == owner.index && state != SliceState::kDone &&
          state != SliceState::kExempt) {
        return true;
      }
    }
  }
  return false;
}

// Owners say it more often than people want to read it.
bool AgentCore::IsNews(const wire::Waiting& entry, int64_t now_ns, NodesNamed& named) const {
  if (named.round == entry.round && named.nodes == entry.missing_nodes && now_ns < named.until_ns) {
    return false;
  }
  const auto waited_ns = static_cast<int64_t>(
      std::min(entry.waited_ns, static_cast<uint64_t>(config_.waiting_max_ns)));
  named = {.round = entry.round, .nodes = entry.missing_nodes, .until_ns = now_ns + waited_ns / 2};
  return true;
}

void AgentCore::OnWaiting(const Owner& owner, const wire::Waiting& entry, int64_t now_ns,
                          Effects& out) {
  if (entry.key == TensorKey{0}) return OnEpochWaiting(owner, entry, now_ns, out);
  const auto it = tensor_by_key_.find(entry.key);
  if (it == tensor_by_key_.end()) {
    ++counters_.frames_ignored;
    return;
  }
  AgentTensor& tensor = *At(it->second);
  const bool is_open = entry.round == tensor.active_round();
  const std::string round =
      "round " + std::to_string(entry.round.value()) + " of tensor '" + tensor.spec.name + "'";
  // A side tensor ends with the view that follows, and the job does not.
  const std::string left = is_open && !tensor.spec.collective.side ? LeftText(entry, round) : "";
  if (!left.empty()) return FailForLeft(tensor, left, out);
  if (Names(entry, config_.self.node)) return;
  const bool is_awaited =
      is_open && (tensor.contributed || tensor.finish) && phase_ != Phase::kFencing;
  if (is_awaited && CheckAbsent(owner, entry, round, out)) return;
  if (!IsNews(entry, now_ns, tensor.named)) return;
  out.push_back(LogWaiting{.what = LogWaiting::For::kNodes,
                           .tensor = it->second,
                           .round = entry.round,
                           .waited_ns = entry.waited_ns,
                           .missing = entry.missing_nodes,
                           .absent_ns = entry.absent_ns});
}

// For reports, not for a round. An aggregator that has a newer view than this member says so, too:
// it sums nothing more in this epoch, though others may.
void AgentCore::OnEpochWaiting(const Owner& owner, const wire::Waiting& entry, int64_t now_ns,
                               Effects& out) {
  if (phase_ == Phase::kFencing) return;  // That epoch is over.
  const std::string epoch =
      "epoch " + std::to_string(view_->epoch.value()) + " of job '" + config_.job_name + "'";
  if (Names(entry, config_.self.node)) {
    const bool is_long = entry.waited_ns >= static_cast<uint64_t>(config_.unreachable_ns);
    if (SchedulerIsMissed() && is_long && WaitsFor(owner)) {
      ReportAndFail("node " + std::to_string(config_.self.node.value()) + " waits in " + epoch +
                        " for aggregator '" + OwnerName(owner) +
                        "', which has had a newer view for " + MillisecondsText(entry.waited_ns) +
                        " that the scheduler has not told this node of",
                    out);
      return;
    }
  } else if (const std::string left = LeftText(entry, "the job's beginning"); !left.empty()) {
    return ReportAndFail(left, out);
  } else if (WaitsFor(owner) && CheckAbsent(owner, entry, epoch, out)) {
    return;
  }
  if (!IsNews(entry, now_ns, epoch_named_)) return;
  out.push_back(LogWaiting{.what = LogWaiting::For::kEpoch,
                           .waited_ns = entry.waited_ns,
                           .missing = entry.missing_nodes,
                           .absent_ns = entry.absent_ns});
}

std::string AgentCore::LeftText(const wire::Waiting& entry, const std::string& what) const {
  for (const uint32_t node : entry.missing_nodes) {
    const auto left = left_members_.find(NodeRank{node});
    if (left == left_members_.end()) continue;
    return "node " + std::to_string(node) + " has left job '" + config_.job_name + "' (" +
           left->second + "), but " + what + " needs it";
  }
  return "";
}

void AgentCore::OnTick(int64_t now_ns, Effects& out) {
  next_tick_ns_ = std::numeric_limits<int64_t>::max();
  if (phase_ == Phase::kFailed) return;
  const auto next_notice = [&](int64_t since_ns) {
    return now_ns + std::clamp(now_ns - since_ns, config_.waiting_first_ns, config_.waiting_max_ns);
  };
  if (CheckScheduler(now_ns, out) || CheckUnreachable(now_ns, out)) return;
  for (auto& [index, owner] : owners_) {
    if (owner.state != OwnerState::kBackoff) continue;
    if (owner.retry_at_ns <= now_ns) {
      ConnectTo(owner, out);
    } else {
      Schedule(owner.retry_at_ns);
    }
  }
  for (const TensorIndex index : half_pushed_) {
    AgentTensor& tensor = *At(index);
    if (tensor.next_notice_ns <= now_ns) {
      LogWaiting notice{.what = LogWaiting::For::kLocalRanks,
                        .tensor = index,
                        .round = tensor.open_round(),
                        .waited_ns = static_cast<uint64_t>(now_ns - tensor.first_push_ns)};
      for (uint32_t i = 0; i < tensor.pushed.size(); ++i) {
        if (!tensor.pushed[i] && tensor.in_group[i]) notice.missing.push_back(i);
      }
      out.push_back(std::move(notice));
      tensor.next_notice_ns = next_notice(tensor.first_push_ns);
    }
    Schedule(tensor.next_notice_ns);
  }
  if (phase_ == Phase::kFencing || phase_ == Phase::kReporting) {
    if (phase_notice_ns_ <= now_ns) {
      LogWaiting notice{.what = LogWaiting::For::kAggregators,
                        .waited_ns = static_cast<uint64_t>(now_ns - phase_since_ns_)};
      for (const auto& [index, owner] : owners_) {
        bool is_waited_for = owner.state != OwnerState::kReady;
        for (const std::unique_ptr<AgentTensor>& tensor : tensors_) {
          is_waited_for |=
              tensor->awaits_decision && tensor->primary == index && phase_ == Phase::kReporting;
        }
        if (is_waited_for) notice.missing.push_back(index.value());
      }
      out.push_back(std::move(notice));
      phase_notice_ns_ = next_notice(phase_since_ns_);
    }
    Schedule(phase_notice_ns_);
  }
}

}  // namespace talweg::pipeline
