// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "libs/base/check.h"
#include "libs/membership/link_shares.h"
#include "libs/membership/scheduler_core.h"
#include "libs/membership/turn.h"

// What follows from the state of a job: views, failures, ends, quiesces.
namespace talweg::membership {
namespace {

std::string CountText(size_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

bool IsAlive(const LiveJob& job, const view::ViewMember& member) {
  const auto alive = job.members.find(member.id.node);
  return alive != job.members.end() && alive->second.record.member.id == member.id;
}

size_t AliveInView(const LiveJob& job) {
  return std::count_if(job.view->members.begin(), job.view->members.end(),
                       [&](const view::ViewMember& member) { return IsAlive(job, member); });
}

// Those that take part in steps.
size_t AliveInSteps(const LiveJob& job) {
  return std::count_if(
      job.view->members.begin(), job.view->members.end(),
      [&](const view::ViewMember& member) { return !member.standby && IsAlive(job, member); });
}

std::string StandbysText(const view::View& view) {
  std::vector<NodeRank> nodes;
  for (const view::ViewMember& member : view.members) {
    if (member.standby) nodes.push_back(member.id.node);
  }
  return nodes.empty() ? "" : " (standby: " + NodesText(nodes) + ")";
}

const MemberRecord* FindGone(const LiveJob& job, const view::MemberIdentity& id) {
  for (const MemberRecord& gone : job.gone) {
    if (gone.member.id == id) return &gone;
  }
  return nullptr;
}

}  // namespace

std::vector<NodeRank> PendingNodes(const LiveJob& job) {
  std::vector<NodeRank> nodes;
  for (const auto& [node, member] : job.members) {
    const bool enters = job.Pending(member) && job.MayEnter(member);
    if (enters || job.MayEnterSteps(member)) nodes.push_back(node);
  }
  return nodes;
}

void SchedulerCore::Advance(LiveJob& job, Turn& turn) {
  if (job.state == JobState::kForming) AdvanceForming(job, turn);
  if (job.state == JobState::kRunning) AdvanceRunning(job, turn);
}

void SchedulerCore::AdvanceForming(LiveJob& job, Turn& turn) {
  if (job.members.empty()) {
    const bool lost = !job.gone.empty() && job.gone.back().state == MemberState::kLost;
    End(job, lost ? JobState::kFailed : JobState::kFinished,
        "job '" + job.name + "' ended before it had started" +
            (job.gone.empty() ? "" : ": " + job.gone.back().text),
        turn);
    return;
  }
  const size_t ready = std::count_if(job.members.begin(), job.members.end(), [](const auto& entry) {
    return entry.second.stream.has_value();
  });
  const bool is_late = job.join_deadline_ns <= turn.now_ns;
  if (ready < job.spec.min_members) {
    job.gather_end_ns.reset();
  } else {
    if (!job.gather_end_ns) job.gather_end_ns = turn.now_ns + job.spec.gather_ns;
    const bool is_gathered =
        ready >= MembersToBegin(job) || *job.gather_end_ns <= turn.now_ns || is_late;
    if (is_gathered && MakeView(job, true, turn)) return;
  }
  if (is_late) {
    Fail(job,
         "it has not started within " + SecondsText(job.spec.join_timeout_ns) + ": it " +
             StateText(job),
         turn);
  }
}

// The words of every loss in the view that no later view has made good.
std::string SchedulerCore::LossesOf(const LiveJob& job) const {
  std::string text;
  const auto add = [&text](const std::string& words) {
    text += (text.empty() ? "" : "; ") + words;
  };
  for (const view::ViewMember& member : job.view->members) {
    const auto alive = job.members.find(member.id.node);
    if (alive != job.members.end() && alive->second.record.member.id == member.id) continue;
    const MemberRecord* gone = FindGone(job, member.id);
    if (gone == nullptr) {
      add(AgentText(member) + " is gone");
    } else if (gone->state == MemberState::kLost) {
      add(gone->text);
    }
  }
  for (const view::ViewAggregator& aggregator : job.view->aggregators) {
    const auto known = aggregators_.find(aggregator.incarnation);
    if (known == aggregators_.end()) {
      add(AggregatorText(aggregator) + " is gone");
    } else if (known->second.record.state == AggregatorState::kLost) {
      add(known->second.record.text);
    }
  }
  return text;
}

// Whether, without any loss, a view should follow on the present one: only a job that goes on with
// other members and aggregators can be without those that leave.
bool SchedulerCore::WantsNewView(const LiveJob& job) const {
  if (job.epoch_floor > job.view->epoch) return true;
  if (job.spec.loss_policy != LossPolicy::kContinue) return false;
  if (AliveInSteps(job) < job.spec.min_members) return false;
  if (AliveInView(job) < job.view->members.size()) return true;
  const std::vector<view::ViewAggregator> next = AggregatorsFor(job);
  return !next.empty() &&
         std::any_of(job.view->aggregators.begin(), job.view->aggregators.end(),
                     [&](const view::ViewAggregator& aggregator) {
                       const auto known = aggregators_.find(aggregator.incarnation);
                       return known != aggregators_.end() &&
                              known->second.record.state == AggregatorState::kDraining;
                     });
}

void SchedulerCore::AdvanceRunning(LiveJob& job, Turn& turn) {
  const size_t alive = AliveInSteps(job);
  const std::string losses = LossesOf(job);
  if (!losses.empty()) {
    if (job.spec.loss_policy == LossPolicy::kFailJob) return Fail(job, losses, turn);
    if (alive < job.spec.min_members) {
      return Fail(job,
                  losses + "; " + CountText(alive, "member") + " left, the job needs at least " +
                      std::to_string(job.spec.min_members),
                  turn);
    }
  } else if (alive == 0) {
    std::vector<NodeRank> late;
    for (const auto& [node, member] : job.members) late.push_back(node);
    std::string text = "job '" + job.name + "' has finished: all members have left";
    if (!late.empty()) text += " before " + NodesText(late) + " could enter";
    TellMembers(job, JobFailed{text}, turn);
    return End(job, JobState::kFinished, text, turn);
  }
  if (!AdvanceRecovery(job, turn)) return;
  if ((!losses.empty() || WantsNewView(job)) && !MakeView(job, false, turn)) {
    return Fail(job, (losses.empty() ? "a new view is needed" : losses) + "; no aggregator is left",
                turn);
  }
  AdvanceQuiesce(job, turn);
}

void SchedulerCore::AdvanceQuiesce(LiveJob& job, Turn& turn) {
  const std::vector<NodeRank> joining = PendingNodes(job);
  const bool complete = AliveInView(job) == job.view->members.size();
  const bool wanted = complete && !joining.empty() && !AggregatorsFor(job).empty();
  if (!wanted) return CancelQuiesce(job, turn);
  if (!job.quiesce) {
    ProposeQuiesce(job, 0, turn);
    turn.Log("job '" + job.name + "': " + NodesText(joining) +
             " wait for the end of a step to enter");
    return;
  }
  if (!job.quiesce->waits_for.empty()) return;
  if (job.quiesce->step == 0) {
    // A member that says nothing of steps stops where it is, as those before it did.
    const uint64_t latest = std::max<uint64_t>(job.quiesce->latest_step, 1);
    return ProposeQuiesce(job, latest, turn);
  }
  const bool made = MakeView(job, true, turn);
  TALWEG_CHECK(made);
}

void SchedulerCore::ProposeQuiesce(LiveJob& job, uint64_t step, Turn& turn) {
  job.quiesce = QuiesceState{.id = QuiesceId{++quiesce_last_}, .step = step};
  const Quiesce quiesce{job.quiesce->id, PendingNodes(job), step};
  for (const view::ViewMember& member : job.view->members) {
    if (member.standby) continue;
    job.quiesce->waits_for.insert(member.id);
    const LiveMember& alive = job.members.at(member.id.node);
    if (alive.stream) turn.Say(TellMember{*alive.stream, quiesce});
  }
}

void SchedulerCore::CancelQuiesce(LiveJob& job, Turn& turn) {
  if (!job.quiesce) return;
  const QuiesceCancelled cancelled{job.quiesce->id};
  job.quiesce.reset();
  for (const view::ViewMember& member : job.view->members) {
    const auto alive = job.members.find(member.id.node);
    if (alive != job.members.end() && alive->second.stream) {
      turn.Say(TellMember{*alive->second.stream, cancelled});
    }
  }
}

// Those to be trusted with bytes: heard of in this life of the scheduler, or in the view already.
std::vector<view::ViewAggregator> SchedulerCore::AggregatorsFor(const LiveJob& job) const {
  std::vector<view::ViewAggregator> chosen;
  const bool has_standby = job.view && job.view->HasStandby();
  for (const auto& [id, aggregator] : aggregators_) {
    const bool in_view = job.view && job.view->IndexOfAggregator(id);
    const bool fits = in_view || (aggregator.stream && (aggregator.knows_standbys || !has_standby));
    if (aggregator.record.state == AggregatorState::kLive && fits) {
      chosen.push_back(aggregator.record.aggregator);
    }
  }
  std::sort(
      chosen.begin(), chosen.end(),
      [](const view::ViewAggregator& a, const view::ViewAggregator& b) { return a.name < b.name; });
  return chosen;
}

void SchedulerCore::WeighFor(const LiveJob& job, const std::vector<view::ViewMember>& members,
                             std::vector<view::ViewAggregator>& aggregators) {
  std::set<std::string> hosts;
  for (const view::ViewMember& member : members) {
    const auto known = job.members.find(member.id.node);
    if (known != job.members.end()) hosts.insert(known->second.record.member.host_id);
  }
  WeighByLinks(hosts, aggregators);
}

std::vector<SpareAggregator> SchedulerCore::SparesOf(const LiveJob& job) const {
  std::vector<SpareAggregator> spares;
  if (job.state != JobState::kRunning) return spares;
  const std::vector<view::ViewAggregator> could = AggregatorsFor(job);
  std::vector<view::ViewAggregator> would = could;
  WeighFor(job, job.view->members, would);
  for (const view::ViewAggregator& aggregator : could) {
    if (job.view->IndexOfAggregator(aggregator.incarnation)) continue;
    const bool enters =
        std::any_of(would.begin(), would.end(), [&](const view::ViewAggregator& other) {
          return other.incarnation == aggregator.incarnation;
        });
    spares.push_back({.name = aggregator.name, .enters_next_view = enters});
  }
  return spares;
}

// Who knows none would take a standby for a full member.
bool SchedulerCore::AllKnowStandbys(const LiveJob& job) const {
  for (const auto& [node, member] : job.members) {
    if (!job.Pending(member) && !member.ranks_ready) return false;
  }
  const std::vector<view::ViewAggregator> aggregators = AggregatorsFor(job);
  return std::all_of(aggregators.begin(), aggregators.end(), [&](const view::ViewAggregator& each) {
    return aggregators_.at(each.incarnation).knows_standbys;
  });
}

bool SchedulerCore::MakeView(LiveJob& job, bool with_joiners, Turn& turn) {
  const Epoch epoch = std::max(job.epoch_floor, job.epoch_start).Next();
  view::View view{.job = job.id,
                  .epoch = epoch,
                  .slice_bytes_max = job.spec.slice_bytes_max,
                  .dealing = job.spec.dealing,
                  .steps = job.view ? job.view->steps : 0,
                  .aggregators = AggregatorsFor(job)};
  const bool in_two_stages =
      job.view && job.spec.loss_policy == LossPolicy::kContinue && AllKnowStandbys(job);
  for (const auto& [node, member] : job.members) {
    const bool in_view = job.view && job.view->IndexOf(member.record.member.id);
    if (!in_view && !(with_joiners && job.MayEnter(member))) continue;
    view::ViewMember& entry = view.members.emplace_back(member.record.member);
    entry.standby = in_view ? job.IsStandby(member) && !(with_joiners && job.MayEnterSteps(member))
                            : in_two_stages && !member.ranks_ready.value_or(true);
  }
  if (view.RankCount() == 0) return false;
  if (view.aggregators.empty() && view.members.size() > 1) {
    // Bytes that go through a draining aggregator are better than none.
    if (!job.view) return false;
    for (const view::ViewAggregator& aggregator : job.view->aggregators) {
      const auto known = aggregators_.find(aggregator.incarnation);
      if (known != aggregators_.end() && known->second.record.state == AggregatorState::kDraining) {
        view.aggregators.push_back(aggregator);
      }
    }
    if (view.aggregators.empty()) return false;
  }
  WeighFor(job, view.members, view.aggregators);
  // Those that enter count their steps on from here.
  if (with_joiners && job.quiesce) view.steps = std::max(view.steps, job.quiesce->step);
  job.epoch_floor = view.epoch;
  job.state = JobState::kRunning;
  job.quiesce.reset();
  job.view = std::make_shared<const view::View>(std::move(view));
  turn.Store(job);
  turn.Log("job '" + job.name + "': epoch " + std::to_string(job.view->epoch.value()) + " has " +
           CountText(job.view->members.size(), "member") + StandbysText(*job.view) + " and " +
           CountText(job.view->aggregators.size(), "aggregator"));
  // Aggregators first: members greet them as soon as they know.
  TellAggregators(JobView{job.name, *job.view, QuotaOf(job).share}, turn);
  for (const view::ViewMember& member : job.view->members) {
    const LiveMember& alive = job.members.at(member.id.node);
    if (alive.stream) turn.Say(TellMember{*alive.stream, SharedView{job.view}});
  }
  return true;
}

void SchedulerCore::Fail(LiveJob& job, const std::string& text, Turn& turn) {
  const std::string words = "job '" + job.name + "' has failed: " + text;
  TellMembers(job, JobFailed{words}, turn);
  End(job, JobState::kFailed, words, turn);
}

void SchedulerCore::End(LiveJob& job, JobState state, const std::string& text, Turn& turn) {
  job.state = state;
  job.text = text;
  job.quiesce.reset();
  if (job.members.empty()) job.over_at_ns = turn.now_ns;
  turn.Store(job);
  turn.Log(text);
  TellAggregators(JobClosed{job.id, text}, turn);
}

void SchedulerCore::TellMembers(const LiveJob& job, const MemberMessage& message,
                                Turn& turn) const {
  for (const auto& [node, member] : job.members) {
    if (member.stream) turn.Say(TellMember{*member.stream, message});
  }
}

void SchedulerCore::TellAggregators(const AggregatorMessage& message, Turn& turn) const {
  for (const auto& [id, aggregator] : aggregators_) {
    if (aggregator.stream) turn.Say(TellAggregator{*aggregator.stream, message});
  }
}

std::string SchedulerCore::StateText(const LiveJob& job) const {
  if (job.Over()) return job.text;
  if (job.state == JobState::kForming) {
    std::vector<NodeRank> ready;
    for (const auto& [node, member] : job.members) {
      if (member.stream) ready.push_back(node);
    }
    if (ready.size() < job.spec.min_members) {
      return "waits for " + CountText(job.spec.min_members - ready.size(), "more member") + " of " +
             std::to_string(job.spec.min_members) +
             (ready.empty() ? "" : "; has " + NodesText(ready));
    }
    const uint64_t enough = MembersToBegin(job);
    if (ready.size() < enough && job.gather_end_ns && *job.gather_end_ns > last_ns_) {
      return "has " + NodesText(ready) + " and waits for " +
             CountText(enough - ready.size(), "more member") + " of " + std::to_string(enough) +
             ", for at most " + SecondsText(job.spec.gather_ns);
    }
    return "waits for an aggregator; start one with talweg-aggregator";
  }
  const std::vector<NodeRank> joining = PendingNodes(job);
  if (joining.empty()) {
    std::vector<NodeRank> without_ranks;
    std::vector<NodeRank> not_ready;
    for (const auto& [node, member] : job.members) {
      if (job.Pending(member) && !member.ranks_attached) without_ranks.push_back(node);
      if (job.IsStandby(member)) not_ready.push_back(node);
    }
    std::string text;
    if (!without_ranks.empty()) {
      text = NodesText(without_ranks) + " can enter when all ranks are there";
    }
    if (!not_ready.empty()) {
      text += (text.empty() ? "" : "; ") + NodesText(not_ready) +
              ": a standby until all its ranks are ready";
    }
    return text;
  }
  if (!job.quiesce) return NodesText(joining) + " cannot enter: there is no aggregator";
  std::vector<NodeRank> waits_for;
  for (const view::MemberIdentity& id : job.quiesce->waits_for) waits_for.push_back(id.node);
  const uint64_t step = job.quiesce->step;
  return "waits for " + NodesText(waits_for) +
         (step == 0 ? " to say which step it is in"
                    : " to end step " + std::to_string(step) +
                          " (its program says so with talweg.end_step(); one that never does "
                          "lets nobody in)") +
         ", so that " + NodesText(joining) + " can enter";
}

}  // namespace talweg::membership
