// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/quiesce.h"

#include <algorithm>
#include <vector>

#include "libs/membership/next_view.h"
#include "libs/membership/texts.h"

namespace talweg::membership {
namespace {

void ProposeQuiesce(LiveJob& job, uint64_t step, Numbers& numbers, Turn& turn) {
  job.quiesce = QuiesceState{.id = numbers.NextQuiesce(), .step = step};
  const Quiesce quiesce{job.quiesce->id, job.JoiningNodes(), step};
  for (const view::ViewMember& member : job.view->members) {
    if (member.standby) continue;
    job.quiesce->waits_for.insert(member.id);
    const LiveMember& alive = job.members.at(member.id.node);
    if (alive.stream) turn.Say(TellMember{*alive.stream, quiesce});
  }
}

void CancelQuiesce(LiveJob& job, Turn& turn) {
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

}  // namespace

bool AdvanceQuiesce(LiveJob& job, const AggregatorPool& pool, Numbers& numbers, Turn& turn) {
  const std::vector<NodeRank> joining = job.JoiningNodes();
  const bool complete = job.AliveInView() == job.view->members.size();
  const bool wanted = complete && !joining.empty() && !AggregatorsFor(job, pool).empty();
  if (!wanted) {
    CancelQuiesce(job, turn);
    return false;
  }
  if (!job.quiesce) {
    ProposeQuiesce(job, 0, numbers, turn);
    turn.Log("job '" + job.name + "': " + NodesText(joining) +
             " wait for the end of a step to enter");
    return false;
  }
  if (!job.quiesce->waits_for.empty()) return false;
  // A member that names no step stops where it is, as older members do.
  const uint64_t latest = std::max<uint64_t>(job.quiesce->latest_step, 1);
  if (latest <= job.quiesce->step) return true;
  ProposeQuiesce(job, latest, numbers, turn);
  return false;
}

void OnQuiesceAnswer(LiveJob& job, const view::MemberIdentity& member, QuiesceId quiesce,
                     uint64_t step, Turn& turn) {
  if (!job.quiesce || job.quiesce->id != quiesce || job.quiesce->waits_for.erase(member) == 0) {
    return;
  }
  job.quiesce->latest_step = std::max(job.quiesce->latest_step, step);
  // An answer before the last one changes nothing yet.
  if (job.quiesce->waits_for.empty()) turn.Touch(job);
}

}  // namespace talweg::membership
