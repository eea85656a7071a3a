// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/steps.h"

namespace talweg::shm {

RankStatus Steps::Ask(const Boundary& question, const char* what, int64_t timeout_ns,
                      PendingAnswer& pending, ErrorText& error) {
  if (link_.minor() < kStepsMinor) {
    return error.Fail(RankStatus::kUnsupported,
                      "%s: the agent at '%s' has version 1.%u of its messages, and tells ranks of "
                      "views from 1.%u on; start a newer one",
                      what, link_.path(), link_.minor(), kStepsMinor);
  }
  RankStatus over = RankStatus::kOk;
  if (health_.Over(&over)) return health_.FailOver(over, what, error);
  switch (questions_.Ask(question, pending, Deadline(timeout_ns), &over)) {
    case Awaited::kDone: break;
    case Awaited::kOver: return health_.FailOver(over, what, error);
    case Awaited::kTimeout:
      return error.Fail(RankStatus::kTimeout, "%s: no answer within %.3f s", what,
                        static_cast<double>(timeout_ns) / 1e9);
  }
  return pending.Status(error);
}

RankStatus Steps::End(int64_t timeout_ns, ErrorText& error) {
  RankStatus over = RankStatus::kOk;
  if (health_.Over(&over)) return health_.FailOver(over, "the end of a step", error);
  if (link_.minor() < kStepsMinor) return RankStatus::kOk;  // Such an agent lets no node in.
  if (identity_.is_standby) {
    return error.Fail(RankStatus::kInvalidArgument,
                      "the end of a step: node %u is a standby, which takes part in no step; say "
                      "talweg_ready, and follow the view in which it is a full member "
                      "(talweg_follow)",
                      identity_.node_rank);
  }
  uint64_t steps = ended_.load(std::memory_order_relaxed);
  if (!at_boundary_.exchange(true)) {
    ended_.store(++steps, std::memory_order_relaxed);
    link_.control().rank_line().steps_ended.store(steps, std::memory_order_seq_cst);
  }
  const uint64_t stop_at = link_.control().agent_line().stop_at.load(std::memory_order_seq_cst);
  if (stop_at != 0 && steps + 1 >= stop_at) {
    PendingAnswer pending;
    const Boundary question{.question = BoundaryQuestion::kWait, .steps_ended = steps};
    const RankStatus status =
        Ask(question, "nodes that want to enter: the end of a step", timeout_ns, pending, error);
    if (status != RankStatus::kOk) return status;
  }
  at_boundary_.store(false);
  return RankStatus::kOk;
}

uint64_t Steps::NewestEpoch() const {
  return link_.control().agent_line().epoch.load(std::memory_order_seq_cst);
}

RankStatus Steps::Look(uint64_t epoch, RankMembership* view, MembershipMember* members,
                       uint32_t members_max, int64_t timeout_ns, ErrorText& error) {
  uint32_t known = 0;
  do {
    PendingAnswer pending;
    pending.members = members + known;
    pending.members_max = members_max - known;
    const Boundary question{
        .question = BoundaryQuestion::kLook, .epoch = epoch, .first_member = known};
    const RankStatus status = Ask(question, "the job's view", timeout_ns, pending, error);
    if (status != RankStatus::kOk) return status;
    *view = pending.membership;
    epoch = view->epoch;  // All answers must be of one view.
    if (pending.membership.members.size() == 0) break;
    known += pending.membership.members.size();
  } while (known < view->member_count && known < members_max);
  view->first_member = 0;
  view->members = MemberList(members, known);
  return RankStatus::kOk;
}

RankStatus Steps::Ready(int64_t timeout_ns, ErrorText& error) {
  RankStatus over = RankStatus::kOk;
  if (health_.Over(&over)) return health_.FailOver(over, "a rank that is ready", error);
  if (link_.minor() < kStandbyMinor) return RankStatus::kOk;  // It knows no standbys.
  PendingAnswer pending;
  const Boundary question{.question = BoundaryQuestion::kReady};
  return Ask(question, "a rank that is ready", timeout_ns, pending, error);
}

RankStatus Steps::Follow(uint64_t epoch, int64_t timeout_ns, ErrorText& error) {
  PendingAnswer pending;
  const Boundary question{.question = BoundaryQuestion::kFollow, .epoch = epoch};
  const RankStatus status = Ask(question, "the job's view", timeout_ns, pending, error);
  if (status != RankStatus::kOk) return status;
  identity_.rank = pending.membership.rank;
  identity_.size = pending.membership.size;
  identity_.number = pending.membership.number;
  identity_.is_standby = (pending.membership.flags & kMembershipStandby) != 0;
  identity_.node_count = pending.membership.member_count;
  return RankStatus::kOk;
}

}  // namespace talweg::shm
