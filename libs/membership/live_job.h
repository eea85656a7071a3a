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
#include "libs/view/gone.h"
#include "libs/view/view.h"

namespace talweg::membership {

struct Complaint {
  view::MemberIdentity reporter;
  std::string about;
  std::string text;
  int64_t at_ns = 0;
};

// What this run of the scheduler knows of a member: the stored record, and the rest.
struct LiveMember {
  MemberRecord record;
  bool from_store = false;  // It joined an earlier run of the scheduler.
  std::optional<StreamId> stream;
  std::string shut_out;          // Why this daemon has ended the member's last stream, or "".
  bool attached_before = false;  // In this run of the scheduler, or in an earlier one.
  RanksWord ranks;               // What it last said.
  int64_t lease_end_ns = 0;
  Epoch epoch_held;
  bool heard_of = false;  // In this run of the scheduler.
};

// All members are asked twice. First they say which step their ranks are in, and stop at its end.
// Then they are told to stop at the end of the latest of these steps. After the second answers all
// ranks have ended the same steps, and every member holds the same rounds.
struct QuiesceState {
  QuiesceId id;
  std::set<view::MemberIdentity> waits_for;
  uint64_t step = 0;         // The step that ranks are to end; 0: it is being asked for.
  uint64_t latest_step = 0;  // The latest answer to the first question.
};

// What this process of the scheduler knows of a job. The store keeps only a part of it. A job that
// is over is kept for a while.
struct LiveJob {
  // How many that are gone are remembered, besides members of the view.
  static constexpr size_t kGoneMax = 256;

  JobId id;
  std::string name;
  JobSpec spec;
  JobState state = JobState::kForming;
  std::string text;
  Epoch epoch_floor;
  Epoch epoch_start;                  // A stored job's next epoch lies above this, too.
  std::optional<Epoch> epoch_stored;  // The store's epoch_floor; nullopt: the job began here.
  int64_t created_unix_ns = 0;
  std::shared_ptr<const view::View> view;  // Null: there is none yet.
  bool recovers = false;                   // From the store; see JobLife::AdvanceRecovery.
  std::map<NodeRank, LiveMember> members;  // Those alive.
  std::vector<MemberRecord> gone;          // In the order in which they went; see ForgetOldest().
  std::optional<QuiesceState> quiesce;
  std::vector<Complaint> complaints;  // The latest ones.
  int64_t join_deadline_ns = 0;
  std::optional<int64_t> gather_end_ns;  // kForming: set while min_members are ready.
  // kForming: the job waits for no more members than this, whatever its spec says. Only this run of
  // the scheduler knows it.
  std::optional<uint32_t> begin_members_most;
  int64_t over_at_ns = 0;  // When the last member of an ended job went; 0: not yet.

  bool Over() const { return state == JobState::kFailed || state == JobState::kFinished; }
  // Whether the member waits to enter the view of a running job.
  bool Pending(const LiveMember& member) const;
  // Whether the next view that admits members may have this one.
  bool MayEnter(const LiveMember& member) const;
  bool IsStandby(const LiveMember& member) const;
  // Whether the next view that admits members makes this standby a full member.
  bool MayEnterSteps(const LiveMember& member) const;
  // Whether the member has the training's state without the others' help. A member that does not
  // say has it as soon as it takes part in steps.
  bool HasState(const LiveMember& member) const;
  // The members that the next view that admits members adds or changes.
  std::vector<NodeRank> JoiningNodes() const;

  // Whether this very incarnation of the view's member is here.
  bool IsAlive(const view::ViewMember& member) const;
  // How many of the view's members are here; and how many of those that take part in steps.
  size_t AliveInView() const;
  size_t AliveInSteps() const;
  // Returns null if the member is not among those that are gone, or has been forgotten.
  const MemberRecord* FindGone(const view::MemberIdentity& id) const;

  // If more than kGoneMax are gone, forgets the oldest that is no member of the view. A member of
  // the view that is not here and forgotten would count as lost, although it may have left.
  void ForgetOldest();
  // Those that are gone, except for members of the view. The job has one.
  view::Gone GoneFromView() const;

  // The record of the job to be stored.
  JobRecord Record() const;
};

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_LIVE_JOB_H_
