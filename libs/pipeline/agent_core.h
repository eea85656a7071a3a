// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_AGENT_CORE_H_
#define TALWEG_LIBS_PIPELINE_AGENT_CORE_H_

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "libs/base/awake_time.h"
#include "libs/base/bytes.h"
#include "libs/base/ids.h"
#include "libs/pipeline/agent_tensor.h"
#include "libs/pipeline/effects.h"
#include "libs/schedule/slice_queue.h"
#include "libs/view/view.h"
#include "libs/wire/frames.h"

namespace talweg::pipeline {

struct AgentCoreConfig {
  view::MemberIdentity self;
  std::string job_name;
  std::string node_name;
  std::string host_id;      // An aggregator's that is equal is not reached over the link. "": none.
  uint32_t rank_count = 1;  // On this node.

  // No more is used of what an aggregator grants.
  uint64_t credit_bytes_max = ~uint64_t{0};
  uint32_t tensors_max = 65536;
  uint64_t tensor_bytes_max = 16 * kGiB;
  // Bytes that may be in the hands of the reducer at once: small keeps preemption quick.
  uint64_t reduce_bytes_max = 2 * kMiB;
  int64_t waiting_first_ns = 1'000'000'000;
  int64_t waiting_max_ns = 60'000'000'000;
  int64_t reconnect_first_ns = 50'000'000;
  int64_t reconnect_max_ns = 2'000'000'000;
  // An aggregator of the view that does not answer for so long, while the scheduler says nothing
  // of it either, ends the job here; so does a member that has no connection for so long, and the
  // scheduler where its word is waited for, when the scheduler is silent for so long. 0: never.
  int64_t unreachable_ns = 0;
  // A view of this job is the last while a round is open. So the caller's memory may hold a round's
  // result where it holds what the node contributes to it, and to the next round.
  bool one_view = false;
};

enum class Phase : uint8_t {
  kForming = 1,    // No view yet.
  kFencing = 2,    // A new view: not all its aggregators have answered.
  kReporting = 3,  // Reported; some tensors wait for their decision.
  kActive = 4,
  kFailed = 5,
};
const char* PhaseName(Phase phase);

enum class OwnerState : uint8_t {
  kBackoff = 1,  // No connection; the next attempt is due at retry_at_ns.
  kConnecting = 2,
  kGreeting = 3,  // Hello sent.
  kFencing = 4,   // Fence sent.
  kReady = 5,     // Welcomed, or fenced: nothing of an older epoch can land through it.
};

// An aggregator of the newest view, and the connection to it.
struct Owner {
  AggregatorIndex index;
  Incarnation incarnation;
  OwnerState state = OwnerState::kBackoff;
  ConnectionId connection;  // 0: none.
  uint64_t credit_bytes = 0;
  int64_t retry_at_ns = 0;
  int64_t backoff_ns = 0;
  int64_t unready_since_ns = 0;      // While not kReady.
  std::string trouble;               // How the last connection broke while it was not.
  std::set<TensorIndex> undeclared;  // While kReady: what the next Flush declares.
};

struct AgentCoreCounters {
  uint64_t contributions_sent = 0;
  uint64_t contribution_bytes_sent = 0;
  uint64_t results_taken = 0;
  uint64_t result_bytes_taken = 0;
  uint64_t result_bytes_written = 0;  // Those of them that are not inside frames.
  uint64_t results_ignored = 0;  // Duplicates, other epochs, other rounds: never shown to a rank.
  uint64_t frames_ignored = 0;   // From unknown connections, or out of place.
  uint64_t rounds_completed = 0;
  uint64_t rounds_aborted = 0;
  uint64_t redos = 0;
  uint64_t finishes = 0;
  std::array<uint64_t, wire::kRefusedReasonCount> refused{};
};

// One agent's life in one job: docs/protocol.md, sections 4 to 7.
//
//   kForming --view--> kFencing --all aggregators answered--> kReporting --all decided--> kActive
//                         ^                                       |                          |
//                         +------------- a newer view ------------+--------------------------+
//   any --job failed, or this agent not in the view--> kFailed
//
// Pure: no clock, lock, memory or I/O. Every event appends what is to be done to `out`; the caller
// performs it, in order, before it delivers the next event. Deterministic. One owner thread.
// Peers and ranks are never trusted: what does not fit is refused, ignored or counted.
//
// Ready slices and new tensors' declarations leave in Flush() only: call it once after each batch
// of events, so that those of many tensors travel together.
//
// Local completions of writes are no event: a source is not reused before its result has come over
// the same ordered connection, or before that connection is fenced (section 6).
class AgentCore {
 public:
  explicit AgentCore(const AgentCoreConfig& config);

  // --- From the scheduler.

  // A view that is not newer than the present one is ignored. A view of one member and no
  // aggregators makes the local reduction the round.
  void OnView(const view::View& view, int64_t now_ns, Effects& out);
  // Ends every wait with `text`. Nothing follows.
  void OnJobFailed(const std::string& text, int64_t now_ns, Effects& out);
  // Another member is done and contributes to no further round; a round that still needs it fails
  // the job here, when its owner says so.
  void OnMemberLeft(const view::MemberIdentity& id, const std::string& text);
  // With step 0 ranks stop at the end of the step that they are in, and Quiesced says at once which
  // is the latest of these. With another they go on until they have ended it, and Quiesced follows
  // when all have and no round is open. A newer view, or OnResume, lets them go on.
  void OnQuiesce(uint64_t id, uint64_t step, int64_t now_ns, Effects& out);
  void OnResume(uint64_t id, int64_t now_ns, Effects& out);
  // It does not answer, or does again, and says after how long a lease lapses. What only its word
  // could end is waited for no longer than `unreachable_ns` of its silence.
  void OnSchedulerSilent(int64_t now_ns);
  void OnSchedulerAnswers(int64_t lease_ns, int64_t now_ns);

  // --- From aggregators.

  void OnConnected(ConnectionId connection, int64_t now_ns, Effects& out);
  void OnDisconnected(ConnectionId connection, const std::string& reason, int64_t now_ns,
                      Effects& out);
  // A frame that parsed. What does not parse: close the connection and call OnDisconnected.
  void OnFrame(ConnectionId connection, const wire::Frame& frame, int64_t now_ns, Effects& out);

  // --- From ranks. Local ranks at or past rank_count are ignored.

  void OnRankJoined(LocalRank rank, uint32_t pid, int64_t now_ns, Effects& out);
  // One DeclareReply follows, at once or when the owners have agreed.
  void OnRankDeclare(LocalRank rank, uint32_t request, const TensorSpec& spec, int64_t now_ns,
                     Effects& out);
  void OnPush(const Push& push, int64_t now_ns, Effects& out);
  // It has ended so many steps since it came, and waits until it may begin the next.
  void OnRankAtBoundary(LocalRank rank, uint64_t steps, int64_t now_ns, Effects& out);
  // Ranks here mean, from now on, the numbers that a view gives, which is one of the latest that
  // this member has had. False: it is none of these, or it does not have this member.
  bool OnRanksFollow(Epoch epoch, Effects& out);
  // `clean`: it said goodbye. Otherwise the job cannot go on here; `text` says what was seen.
  void OnRankLeft(LocalRank rank, bool clean, const std::string& text, int64_t now_ns,
                  Effects& out);

  // --- From the caller itself.

  // Performed StopRanks of 0: how many steps each rank has ended; whoever ends one later stops.
  void OnRanksStop(const std::vector<uint64_t>& ended, Effects& out);

  // This node cannot go on, for a reason of its own: the job fails, here and for the scheduler.
  void OnLocalFailure(const std::string& text, int64_t now_ns, Effects& out);
  // `text` is "" when there is memory, else why not.
  void OnTensorAllocated(TensorIndex tensor, const std::string& text, int64_t now_ns, Effects& out);
  // The contribution of a node's only rank does not lie where it could be sent from (but on a GPU):
  // it is reduced to the send buffer like those of several ranks. Before OnTensorAllocated.
  void StageContributions(TensorIndex tensor);
  void OnReduced(uint64_t ticket, int64_t now_ns, Effects& out);
  bool ReduceWanted(uint64_t ticket) const { return reduces_.contains(ticket); }
  // Reconnects and tells who is waited for. Call it at NextTickNs() at the latest.
  void OnTick(int64_t now_ns, Effects& out);
  int64_t NextTickNs() const { return next_tick_ns_; }
  // Lets ready slices leave.
  void Flush(int64_t now_ns, Effects& out);
  // A clean end: says Goodbye to the aggregators, and ends whatever still waits. No Close follows:
  // the caller closes the connections when the Goodbyes have gone out.
  void Leave(Effects& out);

  // --- To look at.

  Phase phase() const { return phase_; }
  const std::string& failed_text() const { return failed_text_; }
  const AgentCoreConfig& config() const { return config_; }
  // The view whose data is taken.
  const view::View* view() const { return view_ ? &*view_ : nullptr; }
  const view::View* newest_view() const { return next_view_ ? &*next_view_ : view(); }
  const std::vector<std::unique_ptr<AgentTensor>>& tensors() const { return tensors_; }
  const AgentTensor* FindTensor(TensorKey key) const;
  const std::map<AggregatorIndex, Owner>& owners() const { return owners_; }
  const schedule::SliceQueue& queue() const { return queue_; }
  const AgentCoreCounters& counters() const { return counters_; }
  bool standalone() const;
  // Whether ranks may have to wait at the end of a step.
  bool quiesces() const { return quiesce_.has_value(); }
  // The view from which the ranks here have their numbers: the first one, until they follow
  // another.
  const view::View* numbers() const { return numbers_ ? &*numbers_ : nullptr; }
  // A view that this member has had lately.
  const view::View* FindView(Epoch epoch) const;
  // Whether the ranks here could take part in steps at once.
  void OnRanksReady(bool ready) { ranks_ready_ = ready; }
  // What the job's ranks had ended when this member came into the steps; its own count on from
  // there.
  uint64_t steps_base() const { return steps_base_; }
  // Global number of a local rank; the local one while there is no view.
  Rank GlobalRank(LocalRank rank) const;

  // CHECKs what must hold between events. For simulations and tests: walks all tensors.
  void CheckInvariants() const;

 private:
  struct LocalRankState {
    bool joined = false;
    bool left = false;
    uint32_t pid = 0;
    std::optional<uint64_t> at_boundary;  // It waits, after so many steps.
  };
  struct QuiesceAsked {
    uint64_t id = 0;
    uint64_t step = 0;
    bool answered = false;
  };
  struct Reduce {
    TensorIndex tensor;
    Round round;
    SliceIndex slice;
    AggregatorIndex owner;
    uint32_t length_bytes = 0;
    uint32_t cost_bytes = 0;  // What it holds of the owner's credit.
    bool is_final = false;
  };
  // agent_core.cc: ranks.
  void AddTensor(LocalRank rank, uint32_t request, const TensorSpec& spec, Effects& out);
  // Without what does not matter, with what is meant.
  TensorSpec Normalized(TensorSpec spec) const;
  std::string SpecProblem(const TensorSpec& spec) const;
  std::string GroupProblem(const TensorSpec& spec) const;
  bool IsStandbyIn(const view::View& view) const;
  // Whether the ranks here follow a view that has their node as a standby.
  bool IsStandby() const;
  void Poison(AgentTensor& tensor, LocalRank rank, const TensorSpec& spec, Effects& out);
  void FailTensorWith(AgentTensor& tensor, Status status, const std::string& text, Effects& out);
  // For the ranks alone: the others may need the round that is held here.
  void GiveUp(AgentTensor& tensor, Status status, const std::string& text, Effects& out);
  void FailJobWith(const std::string& text, Effects& out);
  void ReportAndFail(const std::string& text, Effects& out,
                     std::optional<Rank> rank = std::nullopt);
  void DoPush(const Push& push, int64_t now_ns, Effects& out);
  void CheckLeftRanks(AgentTensor& tensor, Effects& out);
  bool NeedsAllRanks(const AgentTensor& tensor) const;
  // A rank or a member that the open round needs has left: the job's failure, or that of a tensor
  // which only some ranks have.
  void FailForLeft(AgentTensor& tensor, const std::string& text, Effects& out);
  void CheckRanksDone(Effects& out);
  std::string RankText(LocalRank rank) const;
  std::string PushProblem(const Push& push) const;
  void TakeGiven(AgentTensor& tensor, const Push& push);

  // agent_core_view.cc: views, fences, reports, decisions.
  std::string ViewProblem(const view::View& view) const;
  void ConnectTo(Owner& owner, Effects& out);
  void SendBare(const Owner& owner, wire::FrameType type, Effects& out);
  void OwnerAnswered(Owner& owner, int64_t now_ns, Effects& out);
  void Freeze(int64_t now_ns, Effects& out);
  void FreezeTensor(AgentTensor& tensor, Effects& out);
  void PlaceTensor(AgentTensor& tensor, Effects& out);
  // Whose ranks take part, by the first view. False: the tensor has failed.
  bool Resolve(AgentTensor& tensor, Effects& out);
  void ResolveInView(AgentTensor& tensor);
  uint32_t RootInView(uint32_t root_rank) const;
  void Renumber(AgentTensor& tensor) const;
  wire::Report MakeReport(const AgentTensor& tensor) const;
  void SendReport(const Owner& owner, Effects& out);
  schedule::Reach ReachOf(const Owner& owner) const;
  // Those that are due; DeclareAll: every tensor of the view.
  void SendDeclares(Owner& owner, Effects& out);
  void DeclareAll(Owner& owner, Effects& out);
  // With the next Flush.
  void DeclareAtOwners(const AgentTensor& tensor);
  void OnDecision(const Owner& owner, const wire::Decision& decision, Effects& out);
  std::string DecisionProblem(const AgentTensor& tensor, const wire::Decision& decision) const;
  // Whether the decision asks for bytes that are given up, where the job has one view.
  bool AsksForGivenUp(const AgentTensor& tensor, const wire::Decision& decision) const;
  void BeginFinish(AgentTensor& tensor, const wire::Decision& decision);
  void CheckActive();
  void TryQuiesce(Effects& out);
  void LetRanksGo(Effects& out);
  bool AllHaveEnded(uint64_t step) const;

  // agent_core_frames.cc: connections, and what aggregators say.
  void OnWelcome(Owner& owner, const wire::Frame& frame, int64_t now_ns, Effects& out);
  void OnDeclared(const Owner& owner, const wire::Declared& entry, Effects& out);
  void OnResult(const Owner& owner, const wire::Result& entry, uint32_t position, Effects& out);
  void OnFailed(const Owner& owner, const wire::Failed& entry, Effects& out);
  void OnRefused(const Owner& owner, const wire::Refused& entry, Effects& out);
  void AgreementChanged(AgentTensor& tensor, Effects& out);
  void BackOff(Owner& owner, int64_t now_ns);
  void ForgetSlicesOf(AggregatorIndex owner);
  Owner* FindOwner(ConnectionId connection);
  const std::string& OwnerName(const Owner& owner) const;

  // agent_core_waits.cc: who is waited for, and for how long. Check...: whether that has ended the
  // job.
  void CountSilence(int64_t now_ns);
  bool SchedulerIsMissed() const;
  bool RanksWait() const;
  bool SchedulerCannotDecide() const;
  bool CheckScheduler(int64_t now_ns, Effects& out);
  bool CheckUnreachable(int64_t now_ns, Effects& out);
  bool CheckAbsent(const Owner& owner, const wire::Waiting& entry, const std::string& what,
                   Effects& out);
  bool WaitsFor(const Owner& owner) const;
  // Which of the missing has left, if one has: `what` needs it.
  std::string LeftText(const wire::Waiting& entry, const std::string& what) const;
  bool IsNews(const wire::Waiting& entry, int64_t now_ns, NodesNamed& named) const;
  void OnWaiting(const Owner& owner, const wire::Waiting& entry, int64_t now_ns, Effects& out);
  void OnEpochWaiting(const Owner& owner, const wire::Waiting& entry, int64_t now_ns, Effects& out);

  // agent_core_send.cc: a round of a tensor, from the queue to its result.
  bool MaySend(const AgentTensor& tensor) const;
  // Whether contributions are combined, or copied, here before they leave.
  bool Reduces(const AgentTensor& tensor) const;
  MemberIndex self() const { return *view_->IndexOf(config_.self); }
  static uint32_t PartOf(const AgentTensor& tensor, SliceIndex slice);
  // How much of a slice there is, where its part holds `part_bytes`.
  static uint32_t LengthIn(const AgentTensor& tensor, SliceIndex slice, uint64_t part_bytes);
  // What this node contributes to the active round.
  uint32_t GivenLength(const AgentTensor& tensor, SliceIndex slice) const;
  uint32_t GivingRanks(const AgentTensor& tensor, SliceIndex slice) const;
  wire::Form FormOf(const AgentTensor& tensor, SliceIndex slice) const;
  // What no other member takes part in does not go to an owner.
  bool StaysHere(bool others_are_out) const;
  // Nobody else has to do with the slice: its result is made here.
  bool IsPrivate(const AgentTensor& tensor, SliceIndex slice) const;
  // The result is what this node gives: it is copied here.
  bool CopiesOwn(const AgentTensor& tensor, SliceIndex slice) const;
  bool WantsResult(const AgentTensor& tensor, SliceIndex slice) const;
  // When the slice is done its result is here.
  bool WillHold(const AgentTensor& tensor, SliceIndex slice) const;
  SliceBytes BytesOf(const AgentTensor& tensor, SliceIndex slice, Memory memory,
                     uint32_t length_bytes) const;
  uint32_t CostOf(const AgentTensor& tensor, SliceIndex slice) const;
  void QueueSlices(AgentTensor& tensor, Effects& out);
  void SendSlice(AgentTensor& tensor, SliceIndex slice, std::map<ConnectionId, Send>& sends,
                 Effects& out);
  void StartReduce(AgentTensor& tensor, SliceIndex slice, Effects& out);
  void SliceDone(AgentTensor& tensor, SliceIndex slice, uint32_t ranks_summed,
                 uint32_t length_bytes, Effects& out);
  void SliceDisagreed(AgentTensor& tensor, SliceIndex slice, std::string text, Effects& out);
  void CountDone(AgentTensor& tensor, SliceIndex slice, Effects& out);
  void RoundDone(AgentTensor& tensor, Effects& out);
  void AbortRound(AgentTensor& tensor, Status status, const std::string& text, Effects& out);
  void ResetSlices(AgentTensor& tensor);
  void OpenNextRound(AgentTensor& tensor);
  void ForgetReduces();
  AgentTensor* At(TensorIndex index);
  void Schedule(int64_t at_ns);

  AgentCoreConfig config_;
  Phase phase_ = Phase::kForming;
  std::string failed_text_;
  std::optional<view::View> numbers_;
  bool ranks_ready_ = true;
  uint64_t steps_base_ = 0;
  std::deque<view::View> recent_views_;
  std::optional<view::View> view_;
  std::optional<view::View> next_view_;  // While kFencing.
  int64_t phase_since_ns_ = 0;
  int64_t phase_notice_ns_ = 0;
  int64_t next_tick_ns_ = 0;
  NodesNamed epoch_named_;

  bool scheduler_silent_ = false;
  // It fell silent before it could say who is dead, and has not been able to since.
  bool scheduler_relapsed_ = false;
  int64_t silent_ns_ = 0;     // For how long it is.
  int64_t undecided_ns_ = 0;  // And since the first of the silences between which it relapsed.
  int64_t answers_since_ns_ = 0;
  int64_t decides_from_ns_ = 0;  // If it answers until then.
  AwakeTime silence_time_;

  std::map<AggregatorIndex, Owner> owners_;
  uint64_t next_connection_ = 1;

  std::vector<std::unique_ptr<AgentTensor>> tensors_;
  std::unordered_map<TensorKey, TensorIndex> tensor_by_key_;  // For look-ups only.
  uint64_t next_order_ = 1;

  std::vector<LocalRankState> ranks_;
  std::map<NodeRank, std::string> left_members_;  // And what they said.
  std::set<TensorIndex> half_pushed_;             // Some, not all, local ranks have pushed.

  schedule::SliceQueue queue_;
  std::map<uint64_t, Reduce> reduces_;
  uint64_t next_ticket_ = 1;
  uint64_t reducing_bytes_ = 0;
  std::vector<Reduce> reduced_;  // To leave at the next Flush, if still wanted.

  std::optional<QuiesceAsked> quiesce_;

  AgentCoreCounters counters_;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_AGENT_CORE_H_
