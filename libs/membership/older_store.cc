// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "libs/membership/job_life.h"
#include "libs/membership/texts.h"

// A store that was restored from a copy, or lost, is older than the members and aggregators that it
// has records of.
namespace talweg::membership {

void JobLife::ObserveEpoch(LiveJob& job, Epoch held, Turn& turn) {
  if (held <= job.epoch_floor) return;
  turn.Log("job '" + job.name + "': epoch " + std::to_string(held.value()) +
           " was reported, above the stored " + std::to_string(job.epoch_floor.value()) +
           ": the store is older than its members");
  job.epoch_floor = held;
  turn.Store(job);
  turn.Touch(job);
}

bool JobLife::LoseIfInUnknownView(LiveJob& job, const LiveMember& member, Epoch held, Turn& turn) {
  const view::ViewMember self = member.record.member;
  if (held == Epoch{0} || job.Over() || (job.view && job.view->IndexOf(self.id))) return false;
  const std::string why = "is in a view of epoch " + std::to_string(held.value()) +
                          " that the scheduler's store does not know, which is older";
  if (job.state == JobState::kRunning && job.spec.loss_policy == LossPolicy::kFailJob) {
    Fail(job, AgentText(self) + " " + why, turn);
  } else {
    Remove(job, self.id.node, MemberState::kLost, why, turn);
  }
  return true;
}

// After a start the stored view may be older than what the members hold, and a member that it names
// may have missed the later views. Therefore no view is made before all its members have said what
// they hold, or are lost. If some hold a newer view, the others are lost.
bool JobLife::AdvanceRecovery(LiveJob& job, Turn& turn) {
  if (!job.recovers) return true;
  Epoch newest = job.view->epoch;
  for (const auto& [node, member] : job.members) {
    if (job.Pending(member)) continue;
    if (!member.heard_of) return false;
    newest = std::max(newest, member.epoch_held);
  }
  job.recovers = false;
  if (newest == job.view->epoch) return true;
  std::vector<NodeRank> behind;
  for (const auto& [node, member] : job.members) {
    if (!job.Pending(member) && member.epoch_held < newest) behind.push_back(node);
  }
  for (const NodeRank node : behind) {
    Remove(job, node, MemberState::kLost,
           "may have missed the view of epoch " + std::to_string(newest.value()) +
               ", which the scheduler's store does not know, as it is older",
           turn);
  }
  if (behind.empty()) return true;
  AdvanceRunning(job, turn);
  return false;
}

}  // namespace talweg::membership
