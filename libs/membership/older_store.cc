// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "libs/membership/scheduler_core.h"
#include "libs/membership/turn.h"

// A store that was put back from a copy, or lost: it is older than those whom it speaks of.
namespace talweg::membership {
namespace {

// 2025-01-01. From here on kEpochMax is more than a century away.
constexpr int64_t kNumbersFromUnixNs = 1'735'689'600'000'000'000;

// How far the clock of an earlier scheduler may have run ahead of this one's.
constexpr uint64_t kNumbersAheadMax = uint64_t{24} * 3600 * 1'000'000'000;

}  // namespace

uint64_t NumbersFrom(int64_t start_unix_ns) {
  if (start_unix_ns <= kNumbersFromUnixNs) return 0;
  const auto since = static_cast<uint64_t>(start_unix_ns - kNumbersFromUnixNs);
  return (std::min(since, kEpochMax.value() / 2) >> 20) << 20;
}

// The largest number that a scheduler can have given, by the time that it is now, or by what the
// store has, whichever is later.
uint64_t SchedulerCore::NumbersBelievedTo(uint64_t stored, int64_t now_ns) const {
  const int64_t unix_ns =
      config_.start_unix_ns == 0 ? 0 : config_.start_unix_ns + (now_ns - start_ns_);
  return std::min(std::max(NumbersFrom(unix_ns), stored) + kNumbersAheadMax, kEpochMax.value());
}

// Whether a process can have been given this epoch. One that came to this scheduler, or to a job
// that began here, has all its views from here. For others the store may be older than they are.
Answer SchedulerCore::CheckEpoch(const LiveJob& job, bool from_store, bool in_view, Epoch held,
                                 int64_t now_ns) const {
  uint64_t largest = in_view ? job.view->epoch.value() : 0;
  if (from_store && job.epoch_stored) {
    largest = std::max(largest, NumbersBelievedTo(job.epoch_stored->value(), now_ns));
  }
  if (held.value() <= largest) return {};
  return {.code = Code::kInvalid,
          .text = "epoch " + std::to_string(held.value()) + " of job '" + job.name +
                  "' cannot be right: the caller can have been given " +
                  (largest == 0 ? "none yet" : "none above " + std::to_string(largest))};
}

Answer SchedulerCore::CheckHeldJobs(const std::vector<HeldJob>& held, int64_t now_ns) const {
  for (const HeldJob& job : held) {
    const auto known = jobs_.find(job.job);
    if (known != jobs_.end()) {
      const Answer answer =
          CheckEpoch(known->second, true, known->second.view != nullptr, job.epoch, now_ns);
      if (!answer.ok()) return answer;
    } else if (job.job.value() > NumbersBelievedTo(job_next_stored_.value(), now_ns)) {
      return {.code = Code::kInvalid,
              .text = "job " + std::to_string(job.job.value()) +
                      " cannot be right: no scheduler can have given that id yet"};
    }
  }
  return {};
}

void SchedulerCore::ObserveJobId(JobId id, Turn& turn) {
  // Given by a scheduler with a newer store than this one: never give it again.
  if (id < job_next_ || id > kJobIdMax) return;
  job_next_ = id.Next();
  turn.write.job_next = job_next_;
}

void SchedulerCore::ObserveEpoch(LiveJob& job, Epoch held, Turn& turn) {
  if (held <= job.epoch_floor) return;
  turn.Log("job '" + job.name + "': epoch " + std::to_string(held.value()) +
           " was reported, above the stored " + std::to_string(job.epoch_floor.value()) +
           ": the store is older than its members");
  job.epoch_floor = held;
  turn.Store(job);
  turn.Touch(job);
}

// Whether a member says that it is in a view, and the store knows of none with it. It may have
// missed views since then, and can be no joiner either, as it has begun rounds.
bool SchedulerCore::HoldsWhatIsNotKnown(LiveJob& job, const LiveMember& member, Epoch held,
                                        Turn& turn) {
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

// Behind a start the stored view may be older than what the members hold, and one that it names may
// have missed those views. So no view is made before all its members have said what they hold, or
// are lost; and if some hold a newer one, the others are lost.
bool SchedulerCore::AdvanceRecovery(LiveJob& job, Turn& turn) {
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
