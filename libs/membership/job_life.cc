// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/job_life.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "libs/base/check.h"
#include "libs/base/counted.h"
#include "libs/membership/next_view.h"
#include "libs/membership/quiesce.h"
#include "libs/membership/texts.h"

namespace talweg::membership {
namespace {

std::string StandbysText(const view::View& view) {
  std::vector<NodeRank> nodes;
  for (const view::ViewMember& member : view.members) {
    if (member.standby) nodes.push_back(member.id.node);
  }
  return nodes.empty() ? "" : " (standby: " + NodesText(nodes) + ")";
}

}  // namespace

void JobLife::Advance(LiveJob& job, Turn& turn) {
  if (job.state == JobState::kForming) AdvanceForming(job, turn);
  if (job.state == JobState::kRunning) AdvanceRunning(job, turn);
}

void JobLife::AdvanceForming(LiveJob& job, Turn& turn) {
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
        ready >= admission_->MembersToBegin(job) || *job.gather_end_ns <= turn.now_ns || is_late;
    if (is_gathered && MakeView(job, true, turn)) return;
  }
  if (is_late) {
    Fail(job,
         "it has not started within " + SecondsText(job.spec.join_timeout_ns) + ": it " +
             StateText(job, admission_->MembersToBegin(job), turn.now_ns),
         turn);
  }
}

// The texts of all losses in the view that no later view has made good.
std::string JobLife::LossesOf(const LiveJob& job) const {
  std::string text;
  const auto add = [&text](const std::string& words) {
    text += (text.empty() ? "" : "; ") + words;
  };
  for (const view::ViewMember& member : job.view->members) {
    if (job.IsAlive(member)) continue;
    const MemberRecord* gone = job.FindGone(member.id);
    if (gone == nullptr) {
      add(AgentText(member) + " is gone");
    } else if (gone->state == MemberState::kLost) {
      add(gone->text);
    }
  }
  for (const view::ViewAggregator& aggregator : job.view->aggregators) {
    const LiveAggregator* known = pool_->Find(aggregator.incarnation);
    if (known == nullptr) {
      add(AggregatorText(aggregator) + " is gone");
    } else if (known->record.state == AggregatorState::kLost) {
      add(known->record.text);
    }
  }
  return text;
}

// Whether a view should follow on the present one without any loss. Only a job that goes on with
// other members and aggregators can do without those that leave.
bool JobLife::WantsNewView(const LiveJob& job) const {
  if (job.epoch_floor > job.view->epoch) return true;
  if (job.spec.loss_policy != LossPolicy::kContinue) return false;
  if (job.AliveInSteps() < job.spec.min_members) return false;
  if (job.AliveInView() < job.view->members.size()) return true;
  const std::vector<view::ViewAggregator> next = AggregatorsFor(job, *pool_);
  return !next.empty() &&
         std::any_of(job.view->aggregators.begin(), job.view->aggregators.end(),
                     [&](const view::ViewAggregator& aggregator) {
                       const LiveAggregator* known = pool_->Find(aggregator.incarnation);
                       return known != nullptr && known->record.state == AggregatorState::kDraining;
                     });
}

void JobLife::AdvanceRunning(LiveJob& job, Turn& turn) {
  const size_t alive = job.AliveInSteps();
  const std::string losses = LossesOf(job);
  if (!losses.empty()) {
    if (job.spec.loss_policy == LossPolicy::kFailJob) return Fail(job, losses, turn);
    if (alive < job.spec.min_members) {
      return Fail(job,
                  losses + "; " + Counted(alive, "member") + " left, the job needs at least " +
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
  if (AdvanceQuiesce(job, *pool_, *numbers_, turn)) {
    const bool made = MakeView(job, true, turn);
    TALWEG_CHECK(made);
  }
}

bool JobLife::MakeView(LiveJob& job, bool with_joiners, Turn& turn) {
  std::optional<view::View> view = NextView(job, *pool_, with_joiners);
  if (!view) return false;
  job.epoch_floor = view->epoch;
  job.state = JobState::kRunning;
  job.quiesce.reset();
  job.view = std::make_shared<const view::View>(*std::move(view));
  turn.Store(job);
  turn.Log("job '" + job.name + "': epoch " + std::to_string(job.view->epoch.value()) + " has " +
           Counted(job.view->members.size(), "member") + StandbysText(*job.view) + " and " +
           Counted(job.view->aggregators.size(), "aggregator"));
  // Aggregators first, because members greet them as soon as they get the view.
  pool_->Tell(
      JobView{job.name, SharedView{job.view}, admission_->QuotaOf(job).share, job.GoneFromView()},
      turn);
  for (const view::ViewMember& member : job.view->members) {
    const LiveMember& alive = job.members.at(member.id.node);
    if (alive.stream) turn.Say(TellMember{*alive.stream, SharedView{job.view}});
  }
  return true;
}

void JobLife::Fail(LiveJob& job, const std::string& text, Turn& turn) {
  const std::string words = "job '" + job.name + "' has failed: " + text;
  TellMembers(job, JobFailed{words}, turn);
  End(job, JobState::kFailed, words, turn);
}

void JobLife::End(LiveJob& job, JobState state, const std::string& text, Turn& turn) {
  job.state = state;
  job.text = text;
  job.quiesce.reset();
  if (job.members.empty()) job.over_at_ns = turn.now_ns;
  turn.Store(job);
  turn.Log(text);
  pool_->Tell(JobClosed{job.id, text}, turn);
}

void JobLife::Remove(LiveJob& job, NodeRank node, MemberState how, const std::string& text,
                     Turn& turn) {
  const auto found = job.members.find(node);
  TALWEG_CHECK(found != job.members.end());
  LiveMember& member = found->second;
  member.record.state = how;
  member.record.text = AgentText(member.record.member) + " " + text;
  turn.Log("job '" + job.name + "': " + member.record.text);
  streams_->End(member.stream,
                how == MemberState::kLeft ? Answer{} : Refuse(Code::kRefused, member.record.text),
                turn);
  job.gone.push_back(std::move(member.record));
  job.ForgetOldest();
  job.members.erase(found);
  if (job.Over() && job.members.empty()) job.over_at_ns = turn.now_ns;
  turn.Store(job);
  turn.Touch(job);
}

void JobLife::TellMembers(const LiveJob& job, const MemberMessage& message, Turn& turn) {
  for (const auto& [node, member] : job.members) {
    if (member.stream) turn.Say(TellMember{*member.stream, message});
  }
}

}  // namespace talweg::membership
