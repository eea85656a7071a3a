// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/waits.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace talweg::pipeline {
namespace {

std::string MillisecondsText(uint64_t ns) { return std::to_string(ns / 1'000'000) + " ms"; }

// A missing node that has had no connection to the owner for this time counts as one that left.
constexpr uint64_t kLeftUnheardNs = 10'000'000'000;

// Whether the owner knew that this missing node had left. An owner that did not know may have sent
// `entry` before the node contributed and left; then the result comes next.
bool HadLeft(const wire::Waiting& entry, size_t missing) {
  const bool has_said_goodbye = std::count(entry.left_nodes.begin(), entry.left_nodes.end(),
                                           entry.missing_nodes[missing]) > 0;
  return has_said_goodbye ||
         (missing < entry.absent_ns.size() && entry.absent_ns[missing] >= kLeftUnheardNs);
}

}  // namespace

void Waits::OnView(const view::View& view) {
  std::erase_if(left_members_,
                [&view](const auto& left) { return !view.IndexOf(left.first).has_value(); });
}

void Waits::OnPhase(int64_t now_ns) {
  phase_since_ns_ = now_ns;
  phase_notice_ns_ = now_ns + config_->waiting_first_ns;
  timer_->Ask(phase_notice_ns_);
}

void Waits::CheckSilence(int64_t now_ns, Effects& out) {
  CheckScheduler(now_ns, out);
  if (!views_->has_failed()) CheckUnreachable(now_ns, out);
}

// Running steps do not need the scheduler. Only the scheduler can give a first view, end a quiesce,
// or let a standby into the steps.
std::string Waits::NeededOfScheduler() const {
  const std::string job = "job '" + config_->job_name + "'";
  if (views_->phase() == Phase::kForming) return job + " has not begun";
  const view::View* const view = views_->newest();
  const bool enters_steps =
      ranks_ready_ && view != nullptr && IsStandbyIn(*view, views_->self_id());
  if (enters_steps) return "this standby is about to join the steps of " + job;
  return quiesce_->AnyRankWaits() ? "a member is about to join " + job : "";
}

// A scheduler that answers may still decide.
void Waits::CheckScheduler(int64_t now_ns, Effects& out) {
  silence_.Count(now_ns);
  if (!silence_.is_silent() || !silence_.CannotDecide()) return;
  const std::string what = NeededOfScheduler();
  if (what.empty()) return;
  failures_->CannotGoOn(
      what + (silence_.has_relapsed() ? ", and the scheduler comes and goes" : ""), out);
}

// The scheduler may take up to `unreachable_ns` to say that an aggregator is dead. If this member
// hears neither from the aggregator nor from the scheduler in that time, it ends its ranks' waits.
void Waits::CheckUnreachable(int64_t now_ns, Effects& out) {
  const Owner* const owner = links_->FindUnreachable(now_ns);
  if (owner == nullptr) return;
  failures_->ReportAndFail(
      "node " + std::to_string(config_->self.node.value()) + " of job '" + config_->job_name +
          "' has not reached aggregator '" + links_->NameOf(owner->index) + "' for " +
          MillisecondsText(static_cast<uint64_t>(config_->unreachable_ns)) + " (" +
          (owner->trouble.empty() ? "it does not answer" : owner->trouble) + ")",
      out);
}

// The scheduler could decide to go on without the member. A connected member is alive: it is waited
// for.
bool Waits::CheckAbsent(AggregatorIndex from, const wire::Waiting& entry, const std::string& what,
                        int64_t now_ns, Effects& out) {
  silence_.Count(now_ns);  // It may be able to decide since the last tick.
  if (!silence_.CannotDecide()) return false;
  const size_t count = std::min(entry.missing_nodes.size(), entry.absent_ns.size());
  for (size_t i = 0; i < count; ++i) {
    if (entry.absent_ns[i] < static_cast<uint64_t>(config_->unreachable_ns)) continue;
    failures_->ReportAndFail(what + " needs node " + std::to_string(entry.missing_nodes[i]) +
                                 ", which has had no connection to aggregator '" +
                                 links_->NameOf(from) + "' for " +
                                 MillisecondsText(entry.absent_ns[i]) + ", and the scheduler " +
                                 (silence_.has_relapsed() ? "comes and goes, and does" : "does") +
                                 " not say what became of it",
                             out);
    return true;
  }
  return false;
}

bool Waits::WaitFor(AggregatorIndex owner) const {
  const auto& tensors = tensors_->all();
  return std::any_of(tensors.begin(), tensors.end(),
                     [owner](const auto& tensor) { return tensor->WaitsFor(owner); });
}

bool Waits::NamesThisNode(const wire::Waiting& entry) const {
  return std::count(entry.missing_nodes.begin(), entry.missing_nodes.end(),
                    config_->self.node.value()) > 0;
}

// Owners repeat themselves more often than people want to read it.
bool Waits::IsNews(const wire::Waiting& entry, int64_t now_ns, NodesNamed& named) const {
  if (named.round == entry.round && named.nodes == entry.missing_nodes && now_ns < named.until_ns) {
    return false;
  }
  const auto waited_ns = static_cast<int64_t>(
      std::min(entry.waited_ns, static_cast<uint64_t>(config_->waiting_max_ns)));
  named = {.round = entry.round, .nodes = entry.missing_nodes, .until_ns = now_ns + waited_ns / 2};
  return true;
}

void Waits::OnTensorWaiting(AgentTensor& tensor, AggregatorIndex from, const wire::Waiting& entry,
                            int64_t now_ns, Effects& out) {
  const bool is_open = entry.round == tensor.active_round();
  const std::string round =
      "round " + std::to_string(entry.round.value()) + " of tensor '" + tensor.spec.name + "'";
  // A side tensor ends with the next view, and the job goes on.
  const std::string left = is_open && !tensor.spec.collective.side ? LeftText(entry, round) : "";
  if (!left.empty()) return failures_->FailForLeft(tensor, left, out);
  if (NamesThisNode(entry)) return;
  const bool is_awaited = is_open && !tensor.WaitsForPushes() && views_->phase() != Phase::kFencing;
  if (is_awaited && CheckAbsent(from, entry, round, now_ns, out)) return;
  if (!IsNews(entry, now_ns, tensor.named)) return;
  out.push_back(LogWaiting{.what = LogWaiting::For::kNodes,
                           .tensor = tensor.index,
                           .round = entry.round,
                           .waited_ns = entry.waited_ns,
                           .missing = entry.missing_nodes,
                           .absent_ns = entry.absent_ns});
}

// An aggregator that has a newer view than this member also says this: it sums nothing more in this
// epoch, though other aggregators may.
void Waits::OnEpochWaiting(AggregatorIndex from, const wire::Waiting& entry, int64_t now_ns,
                           Effects& out) {
  if (views_->phase() == Phase::kFencing) return;  // That epoch is over.
  const std::string epoch = "epoch " + std::to_string(views_->present()->epoch.value()) +
                            " of job '" + config_->job_name + "'";
  if (NamesThisNode(entry)) {
    const bool is_long = entry.waited_ns >= static_cast<uint64_t>(config_->unreachable_ns);
    if (silence_.IsTooLong() && is_long && WaitFor(from)) {
      failures_->ReportAndFail(
          "node " + std::to_string(config_->self.node.value()) + " waits in " + epoch +
              " for aggregator '" + links_->NameOf(from) + "', which has had a newer view for " +
              MillisecondsText(entry.waited_ns) + " that the scheduler has not told this node of",
          out);
      return;
    }
  } else if (const std::string left = LeftText(entry, "the job's beginning"); !left.empty()) {
    return failures_->ReportAndFail(left, out);
  } else if (WaitFor(from) && CheckAbsent(from, entry, epoch, now_ns, out)) {
    return;
  }
  if (!IsNews(entry, now_ns, epoch_named_)) return;
  out.push_back(LogWaiting{.what = LogWaiting::For::kEpoch,
                           .waited_ns = entry.waited_ns,
                           .missing = entry.missing_nodes,
                           .absent_ns = entry.absent_ns});
}

std::string Waits::LeftText(const wire::Waiting& entry, const std::string& what) const {
  for (size_t i = 0; i < entry.missing_nodes.size(); ++i) {
    const uint32_t node = entry.missing_nodes[i];
    const auto left = left_members_.find(NodeRank{node});
    if (left == left_members_.end() || !HadLeft(entry, i)) continue;
    return "node " + std::to_string(node) + " has left job '" + config_->job_name + "' (" +
           left->second + "), but " + what + " needs it";
  }
  return "";
}

void Waits::TellAggregators(int64_t now_ns, Effects& out) {
  const bool is_reporting = views_->phase() == Phase::kReporting;
  if (!is_reporting && views_->phase() != Phase::kFencing) return;
  if (phase_notice_ns_ <= now_ns) {
    LogWaiting notice{.what = LogWaiting::For::kAggregators,
                      .waited_ns = static_cast<uint64_t>(now_ns - phase_since_ns_)};
    for (const auto& [index, owner] : links_->all()) {
      bool is_waited_for = owner.state != OwnerState::kReady;
      for (const std::unique_ptr<AgentTensor>& tensor : tensors_->all()) {
        is_waited_for |= is_reporting && tensor->awaits_decision() && tensor->primary == index;
      }
      if (is_waited_for) notice.missing.push_back(index.value());
    }
    out.push_back(std::move(notice));
    phase_notice_ns_ = config_->NextNoticeNs(phase_since_ns_, now_ns);
  }
  timer_->Ask(phase_notice_ns_);
}

}  // namespace talweg::pipeline
