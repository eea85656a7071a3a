// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_LIVE_JOB_H_
#define TALWEG_LIBS_MEMBERSHIP_LIVE_JOB_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "libs/base/ids.h"
#include "libs/membership/records.h"
#include "libs/membership/requests.h"
#include "libs/view/view.h"

namespace talweg::membership {

struct Complaint {
  view::MemberIdentity reporter;
  std::string about;
  std::string text;
  int64_t at_ns = 0;
};

// What this life of the scheduler knows of a member: what is stored of it, and what is not.
struct LiveMember {
  MemberRecord record;
  bool from_store = false;  // It joined an earlier scheduler.
  std::optional<StreamId> stream;
  std::string shut_out;          // Why this daemon has ended its last stream, or "".
  bool attached_before = false;  // In this life of the scheduler, or in an earlier one.
  RanksWord ranks;               // Its last.
  int64_t lease_end_ns = 0;
  Epoch epoch_held;
  bool heard_of = false;  // In this life of the scheduler.
};

// All members are asked twice: first which step their ranks are in, at whose end they stop; then to
// stop at the end of the latest of these. After the second answers all ranks have ended the same
// steps, and every member holds the same rounds.
struct QuiesceState {
  QuiesceId id;
  std::set<view::MemberIdentity> waits_for;
  uint64_t step = 0;         // That ranks are to have ended; 0: it is being asked for.
  uint64_t latest_step = 0;  // The latest that a member has answered to the first.
};

// What this life of the scheduler knows of a job, also of one that is over.
struct LiveJob {
  JobId id;
  std::string name;
  JobSpec spec;
  JobState state = JobState::kForming;
  std::string text;
  Epoch epoch_floor;
  Epoch epoch_start;                  // A job from the store has its next epoch above this, too.
  std::optional<Epoch> epoch_stored;  // epoch_floor as the store had it; nullopt: begun here.
  int64_t created_unix_ns = 0;
  std::shared_ptr<const view::View> view;  // Null: it has none yet.
  bool recovers = false;                   // From the store: see JobLife::AdvanceRecovery.
  std::map<NodeRank, LiveMember> members;  // Those alive.
  std::vector<MemberRecord> gone;          // In the order of their going; bounded.
  std::optional<QuiesceState> quiesce;
  std::vector<Complaint> complaints;  // The latest few.
  int64_t join_deadline_ns = 0;
  std::optional<int64_t> gather_end_ns;  // kForming: while min_members are ready.
  // kForming: it waits for no more, whatever its spec says. Known to this life of the scheduler.
  std::optional<uint32_t> begin_members_most;
  int64_t over_at_ns = 0;  // When the last member of a job that is over went; 0: not yet.

  bool Over() const { return state == JobState::kFailed || state == JobState::kFinished; }
  // Whether it waits to enter the view of a running job.
  bool Pending(const LiveMember& member) const;
  // Whether the next view that takes members in may take this one.
  bool MayEnter(const LiveMember& member) const;
  bool IsStandby(const LiveMember& member) const;
  // Whether the next view that takes members in makes a full member of this standby.
  bool MayEnterSteps(const LiveMember& member) const;
  // Whether the training's state is still there without the other members. One that does not say
  // so has it as soon as it takes part in steps.
  bool HasState(const LiveMember& member) const;
  // Those of its members whom the next view that takes members in changes.
  std::vector<NodeRank> JoiningNodes() const;

  // Whether that very process of the view is here.
  bool IsAlive(const view::ViewMember& member) const;
  // How many of the view are, and how many of those that take part in steps.
  size_t AliveInView() const;
  size_t AliveInSteps() const;
  // Null: it is not among those that are gone, or has been forgotten.
  const MemberRecord* FindGone(const view::MemberIdentity& id) const;

  // What is stored of it.
  JobRecord Record() const;
};

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_LIVE_JOB_H_
