// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_SCHEDULER_CORE_H_
#define TALWEG_LIBS_MEMBERSHIP_SCHEDULER_CORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "libs/base/ids.h"
#include "libs/membership/quotas.h"
#include "libs/membership/records.h"
#include "libs/view/job_quota.h"
#include "libs/view/view.h"

// Who is in which job: the scheduler's core (docs/protocol.md, section 2).
//
//   job:     kForming --gathered--> kRunning --a loss--> kRunning (next epoch) or kFailed
//               |                               |          all members left --> kFinished
//               +--- join deadline, all gone ---+--> kFailed, kFinished
//   member:  kJoined --lease lapses, stream breaks, its own word--> kLost    --Leave--> kLeft
//
// Events and the time go in, effects come out; no clock, lock or I/O. The same events give the same
// effects. The caller performs the effects of an event in their order, and only then gives the
// answer that the event returned: nobody may hear of what is not stored.
namespace talweg::membership {

// One watch stream of a member or an aggregator, named by the caller, never again after its end.
using StreamId = StrongId<struct StreamIdTag, uint64_t>;
// One attempt to stop a job between two steps. Never 0, never used again, also over restarts.
using QuiesceId = StrongId<struct QuiesceIdTag, uint64_t>;

// What the one who asked may do.
enum class Code : uint8_t {
  kOk,
  kInvalid,   // The request can never be right.
  kUnknown,   // No such job or aggregator.
  kHeld,      // A live process has that node rank or name.
  kRefused,   // This incarnation is out, or the job is, or its spec differs.
  kUnproven,  // It does not show the secret of the process that it speaks for.
  kReplaced,  // A stream whose owner has opened another.
  kFull,      // A limit is reached.
  kNotYet,    // It would be right later: ask again.
};

struct Answer {
  Code code = Code::kOk;
  std::string text;  // Why not, if not kOk.

  bool ok() const { return code == Code::kOk; }
  friend bool operator==(const Answer&, const Answer&) = default;
};

struct Config {
  int64_t lease_ns = 10'000'000'000;
  // How long a job that is over, and whose members are gone, is still shown.
  int64_t history_ns = 600'000'000'000;
  // At most so many of them.
  size_t history_jobs_max = 64;
  // The wall clock at the start; 0: unknown. Only for numbers that no other start has given.
  int64_t start_unix_ns = 0;
  // Forming and running jobs, and live aggregators.
  size_t jobs_max = 1024;
  size_t aggregators_max = 1024;

  // OnTick is to be called at least so often. A longer silence than lease_ns / 2 counts as a gap.
  int64_t TickNs() const { return lease_ns / 20 > 500'000'000 ? 500'000'000 : lease_ns / 20 + 1; }
};

struct JoinRequest {
  std::string job_name;
  JobSpec spec;
  view::ViewMember member;
  SecretHash secret;    // Drawn by the member; its later calls show it again.
  int64_t unix_ns = 0;  // For JobRecord::created_unix_ns.
};

// Who calls, as it says itself. Nothing happens for a caller that does not show the member's
// secret.
struct Caller {
  JobId job;
  view::MemberIdentity id;
  Epoch held;  // The newest view's that it holds; 0: none.
  SecretHash secret = {};
};
struct PoolCaller {
  Incarnation incarnation;
  SecretHash secret = {};
};

struct JoinAnswer {
  Answer answer;
  JobId job;
  JobState state = JobState::kForming;
};

enum class LeaveReason : uint8_t {
  kFinished,  // Its ranks are done.
  kStopped,   // Its ranks are not: a loss by its own word.
};

// What a member reports as dead (its own rank, itself) or out of its reach (a peer).
struct LostRank {
  Rank rank;
};
struct LostMember {
  view::MemberIdentity id;
};
struct LostAggregator {
  Incarnation incarnation;
};
using Lost = std::variant<LostRank, LostMember, LostAggregator>;

struct HeldJob {
  JobId job;
  Epoch epoch;
};

struct DeregisterAnswer {
  Answer answer;
  uint32_t job_count = 0;  // Running jobs whose view has (with `leave`: had) it.
};

// Effects -----------------------------------------------------------------------------------------

// Sync this to the store. First among the effects of an event.
struct Persist {
  StoreWrite write;
  friend bool operator==(const Persist&, const Persist&) = default;
};

// Messages on a member's stream.
struct Attached {
  QuiesceId quiesce;  // Under way; 0: none.
  friend bool operator==(const Attached&, const Attached&) = default;
};
struct Quiesce {
  QuiesceId id;
  std::vector<NodeRank> joining;
  uint64_t step = 0;  // Stop when all ranks have ended it. 0: say which one they are in.
  friend bool operator==(const Quiesce&, const Quiesce&) = default;
};
struct QuiesceCancelled {
  QuiesceId id;
  friend bool operator==(const QuiesceCancelled&, const QuiesceCancelled&) = default;
};
struct JobFailed {
  std::string text;
  friend bool operator==(const JobFailed&, const JobFailed&) = default;
};
struct MemberLeft {
  view::MemberIdentity id;
  std::string text;
  friend bool operator==(const MemberLeft&, const MemberLeft&) = default;
};
// A view that many are told: they share it.
class SharedView {
 public:
  explicit SharedView(std::shared_ptr<const view::View> view) : view_(std::move(view)) {}

  const view::View& operator*() const { return *view_; }
  const view::View* operator->() const { return view_.get(); }
  const std::shared_ptr<const view::View>& pointer() const { return view_; }

  friend bool operator==(const SharedView& a, const SharedView& b) {
    return a.view_ == b.view_ || *a.view_ == *b.view_;
  }

 private:
  std::shared_ptr<const view::View> view_;  // Never null.
};
using MemberMessage =
    std::variant<Attached, SharedView, Quiesce, QuiesceCancelled, JobFailed, MemberLeft>;

// Messages on an aggregator's stream.
struct JobView {
  std::string job_name;
  view::View view;
  view::JobQuota quota = {};
  friend bool operator==(const JobView&, const JobView&) = default;
};
// The rules have changed for a job that runs.
struct JobQuotaChanged {
  JobId job;
  view::JobQuota quota;
  friend bool operator==(const JobQuotaChanged&, const JobQuotaChanged&) = default;
};
struct JobClosed {
  JobId job;
  std::string text;
  friend bool operator==(const JobClosed&, const JobClosed&) = default;
};
using AggregatorMessage = std::variant<Attached, JobView, JobClosed, JobQuotaChanged>;

struct TellMember {
  StreamId stream;
  MemberMessage message;
  friend bool operator==(const TellMember&, const TellMember&) = default;
};
struct TellAggregator {
  StreamId stream;
  AggregatorMessage message;
  friend bool operator==(const TellAggregator&, const TellAggregator&) = default;
};
// End the stream with this; no OnStreamBroken is wanted for it.
struct CloseStream {
  StreamId stream;
  Answer why;
  friend bool operator==(const CloseStream&, const CloseStream&) = default;
};
// For the log.
struct Note {
  std::string text;
  friend bool operator==(const Note&, const Note&) = default;
};
using Effect = std::variant<Persist, TellMember, TellAggregator, CloseStream, Note>;

// State, for those who look on --------------------------------------------------------------------

struct Complaint {
  view::MemberIdentity reporter;
  std::string about;
  std::string text;
  int64_t at_ns = 0;
};

// A node that a rule keeps waiting. It asks again and again.
struct WaitingJoin {
  std::string job_name;
  std::string tenant;
  std::optional<NodeRank> node;  // nullopt: whoever is the first of its job.
  std::string text;              // What it waits for.
  int64_t since_ns = 0;
  int64_t asked_ns = 0;  // The last time.
};

// What a tenant has of what its rules count.
struct TenantUse {
  std::vector<std::string> jobs;  // By id.
  uint64_t members_held = 0;      // Each job's members, and at least its min_members.
};

struct SpareAggregator {
  std::string name;
  bool enters_next_view = false;  // It came too late; otherwise the links of others carry all.
};

// What this life of the scheduler knows of a member: what is stored of it, and what is not.
struct LiveMember {
  MemberRecord record;
  bool from_store = false;  // It joined an earlier scheduler.
  std::optional<StreamId> stream;
  bool attached_before = false;  // In this life of the scheduler, or in an earlier one.
  bool ranks_attached = true;    // By its own word: all of its node's.
  // Likewise: none of them has to do anything before it can take part in steps. nullopt: it knows
  // no standbys, or has not been heard.
  std::optional<bool> ranks_ready;
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
  bool recovers = false;                   // From the store: see SchedulerCore::AdvanceRecovery.
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
};

// What this life of the scheduler knows of an aggregator, as of a member.
struct LiveAggregator {
  AggregatorRecord record;
  std::optional<StreamId> stream;
  bool attached_before = false;
  bool knows_standbys = false;  // By its own word, in this life of the scheduler.
  int64_t lease_end_ns = 0;
};

// The core --------------------------------------------------------------------------------------

// The scheduler's core: docs/protocol.md, section 2.
class SchedulerCore {
 public:
  // Goes on where the store has left off; leases start afresh.
  SchedulerCore(const Config& config, const Snapshot& snapshot, int64_t now_ns,
                std::vector<Effect>& out);

  JoinAnswer OnJoin(const JoinRequest& request, int64_t now_ns, std::vector<Effect>& out);
  // `ranks_attached`: whether all ranks of the caller's node are connected to it, `ranks_ready`:
  // whether they could take part in steps at once; nullopt: as before.
  Answer OnRenew(const Caller& caller, std::optional<bool> ranks_attached, int64_t now_ns,
                 std::vector<Effect>& out, std::optional<bool> ranks_ready = std::nullopt);
  Answer OnLeave(const Caller& caller, LeaveReason reason, const std::string& text, int64_t now_ns,
                 std::vector<Effect>& out);
  Answer OnReportLost(const Caller& caller, const Lost& lost, const std::string& text,
                      int64_t now_ns, std::vector<Effect>& out);
  // No more than so many members come to begin the job. `has_begun`: whether it has a view then.
  Answer OnLowerBeginMembers(const std::string& job_name, uint32_t begin_members, bool& has_begun,
                             int64_t now_ns, std::vector<Effect>& out);
  // `step`: the latest that a rank of the caller's is in, or, if it was told one, that one.
  Answer OnQuiesced(const Caller& caller, QuiesceId quiesce, uint64_t step, int64_t now_ns,
                    std::vector<Effect>& out);
  // If not ok, the stream is the caller's to end. `ranks_ready`: nullopt from a caller that knows
  // no standbys.
  Answer OnMemberAttached(StreamId stream, const Caller& caller, bool ranks_attached,
                          int64_t now_ns, std::vector<Effect>& out,
                          std::optional<bool> ranks_ready = std::nullopt);

  // `secret` is drawn by the aggregator; its later calls show it again.
  Answer OnRegister(const view::ViewAggregator& aggregator, const SecretHash& secret,
                    int64_t now_ns, std::vector<Effect>& out);
  Answer OnRenewAggregator(const PoolCaller& caller, int64_t now_ns, std::vector<Effect>& out);
  DeregisterAnswer OnDeregister(const PoolCaller& caller, bool leave, const std::string& text,
                                int64_t now_ns, std::vector<Effect>& out);
  Answer OnAggregatorAttached(StreamId stream, const PoolCaller& caller,
                              const std::vector<HeldJob>& held, int64_t now_ns,
                              std::vector<Effect>& out, bool knows_standbys = false);

  // From now on these rules hold. Who is in stays.
  void OnQuotas(Quotas quotas, int64_t now_ns, std::vector<Effect>& out);

  // The peer's end of the stream is gone. Streams that are unknown or replaced are ignored.
  void OnStreamBroken(StreamId stream, int64_t now_ns, std::vector<Effect>& out);
  void OnTick(int64_t now_ns, std::vector<Effect>& out);

  const Config& config() const { return config_; }
  uint64_t start_count() const { return start_count_; }
  const std::map<JobId, LiveJob>& jobs() const { return jobs_; }
  const std::map<Incarnation, LiveAggregator>& aggregators() const { return aggregators_; }
  Quota QuotaOf(const LiveJob& job) const;
  // What is said of every job of the tenant.
  Quota TenantQuota(const std::string& tenant) const { return quotas_.OfTenant(tenant); }
  TenantUse UseOf(const std::string& tenant) const { return UseOf(tenant, std::nullopt); }
  const std::vector<WaitingJoin>& waiting() const { return waiting_; }  // Oldest first.
  // What a forming job waits for, why one is over, or "".
  std::string StateText(const LiveJob& job) const;
  // Aggregators that could serve a running job and are not in its view, by name.
  std::vector<SpareAggregator> SparesOf(const LiveJob& job) const;

 private:
  struct StreamOwner {
    JobId job;  // 0: an aggregator's stream.
    view::MemberIdentity member;
    Incarnation aggregator;
  };
  class Turn;

  template <typename Body>
  auto Perform(int64_t now_ns, std::vector<Effect>& out, const Body& body);

  JoinAnswer Join(const JoinRequest& request, Turn& turn);
  std::optional<JoinAnswer> JoinedBefore(const JoinRequest& request) const;
  // admission.cc
  TenantUse UseOf(const std::string& tenant, std::optional<JobId> except) const;
  static Answer CheckTenant(const JoinRequest& request, const Quota& quota);
  Answer AdmitJob(const JoinRequest& request, const Quota& quota, Turn& turn);
  // `member_count`: with the one that asks.
  Answer AdmitMember(const LiveJob& job, const JoinRequest& request, uint64_t member_count,
                     Turn& turn);
  Answer Wait(const JoinRequest& request, std::optional<NodeRank> node, const std::string& tenant,
              std::string text, Turn& turn);
  // The first of those that wait to begin a job of the tenant, unless it is this request's.
  const WaitingJoin* OlderThan(const JoinRequest& request, const std::string& tenant,
                               int64_t now_ns) const;
  void EndWait(const JoinRequest& request);
  void ForgetWaiting(int64_t now_ns);
  uint64_t MembersMax(const LiveJob& job) const;
  uint64_t MembersToBegin(const LiveJob& job) const;
  // The job of that name that is not over; null: there is none.
  LiveJob* OpenJob(const std::string& name);

  Answer MakeRoom(LiveJob& job, const JoinRequest& request, Turn& turn);
  Answer Find(const Caller& caller, Turn& turn, LiveJob*& job, LiveMember*& member);
  Answer FindAggregator(const PoolCaller& caller, LiveAggregator*& aggregator);
  uint64_t NumbersBelievedTo(uint64_t stored, int64_t now_ns) const;
  Answer CheckEpoch(const LiveJob& job, bool from_store, bool in_view, Epoch held,
                    int64_t now_ns) const;
  Answer CheckHeldJobs(const std::vector<HeldJob>& held, int64_t now_ns) const;
  void ObserveEpoch(LiveJob& job, Epoch held, Turn& turn);
  void ObserveJobId(JobId id, Turn& turn);
  void Attach(StreamId stream, LiveJob& job, LiveMember& member, Turn& turn);
  void Remove(LiveJob& job, NodeRank node, MemberState how, const std::string& text, Turn& turn);
  void NoteIfLate(const LiveAggregator& aggregator, Turn& turn) const;
  void Lose(LiveAggregator& aggregator, const std::string& text, Turn& turn);
  void EndStream(std::optional<StreamId>& stream, const Answer& why, Turn& turn);

  // What follows from the state of a job; run at the end of a turn for the jobs that it touched.
  void Advance(LiveJob& job, Turn& turn);
  void AdvanceForming(LiveJob& job, Turn& turn);
  void AdvanceRunning(LiveJob& job, Turn& turn);
  void AdvanceQuiesce(LiveJob& job, Turn& turn);
  void ProposeQuiesce(LiveJob& job, uint64_t step, Turn& turn);
  bool AdvanceRecovery(LiveJob& job, Turn& turn);
  bool HoldsWhatIsNotKnown(LiveJob& job, const LiveMember& member, Epoch held, Turn& turn);
  std::string LossesOf(const LiveJob& job) const;
  bool WantsNewView(const LiveJob& job) const;
  bool AllKnowStandbys(const LiveJob& job) const;
  bool MakeView(LiveJob& job, bool with_joiners, Turn& turn);
  std::vector<view::ViewAggregator> AggregatorsFor(const LiveJob& job) const;
  static void WeighFor(const LiveJob& job, const std::vector<view::ViewMember>& members,
                       std::vector<view::ViewAggregator>& aggregators);
  void CancelQuiesce(LiveJob& job, Turn& turn);
  void Fail(LiveJob& job, const std::string& text, Turn& turn);
  void End(LiveJob& job, JobState state, const std::string& text, Turn& turn);
  void TellMembers(const LiveJob& job, const MemberMessage& message, Turn& turn) const;
  void TellAggregators(const AggregatorMessage& message, Turn& turn) const;

  void ObserveGap(int64_t now_ns);
  void ExpireLeases(Turn& turn);
  void Collect(Turn& turn);
  void CollectAggregators(Turn& turn);

  const Config config_;
  Quotas quotas_;
  std::vector<WaitingJoin> waiting_;  // Oldest first.
  uint64_t start_count_ = 0;
  const int64_t start_ns_;
  uint64_t quiesce_last_ = 0;
  JobId job_next_{1};
  JobId job_next_stored_{1};  // As the store had it, or as the time of the start has it.
  std::map<JobId, LiveJob> jobs_;
  std::map<Incarnation, LiveAggregator> aggregators_;  // Those lost of late included.
  std::vector<Incarnation> aggregators_lost_;          // In the order of their going.
  std::map<StreamId, StreamOwner> streams_;
  int64_t last_ns_ = 0;
  // Before this time a broken stream may be the work of a gap; the lease decides.
  int64_t streams_count_from_ns_ = INT64_MIN;
};

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_SCHEDULER_CORE_H_
