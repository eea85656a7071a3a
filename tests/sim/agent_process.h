// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_AGENT_PROCESS_H_
#define TALWEG_TESTS_SIM_AGENT_PROCESS_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "libs/base/random.h"
#include "libs/pipeline/agent_core.h"
#include "services/agent/agent_data_plane.h"
#include "services/agent/agent_driver.h"
#include "services/agent/registrar.h"
#include "tests/sim/agent_link.h"
#include "tests/sim/ledger.h"
#include "tests/sim/network.h"
#include "tests/sim/profile.h"
#include "tests/sim/scheduler_process.h"
#include "tests/sim/sim_rank_server.h"
#include "tests/sim/sim_transport.h"

namespace talweg::sim {

// No tensor reaches this round, so contributions to it must be refused.
inline constexpr Round kConfusedRound{1'000'000};
// The first request number of side tensors' declarations.
inline constexpr uint32_t kSideRequests = 1000;
// More ranks than any node has.
inline constexpr uint32_t kConfusedRankCount = 8;

// A peer has sent such a report, so tensors fail that are not at fault.
inline constexpr const char* kFalseReport = "reports that cannot all be true";

// The text about a round that some members hold, and others can no longer get.
inline constexpr const char* kLostRound = "what the others were to get is lost";

// The text about a round that needs a rank or a member which has left.
inline constexpr const char* kHasLeft = " has left ";

// The texts about a tensor that fails because of a report that is false.
inline constexpr const char* kCannotBeTrue = " cannot be true: ";
inline constexpr const char* kContradict = "reports contradict each other: ";

// The text about a tensor that needs a rank or a member which is not in the view.
inline constexpr const char* kIsGone = " is gone; ";

// A member has received a message that no real aggregator sends.
inline constexpr const char* kForged = "words of a confused aggregator";

// Adds cells as the ledger does, in rank order.
class CellCombiner final : public agent::RankCombiner {
 public:
  void Combine(const pipeline::TensorSpec& spec, bool is_final, uint32_t rank_count,
               std::span<const std::byte* const> inputs,
               std::span<std::byte> output) const override;
};

// One life of one node's agent, with its ranks: the daemon's own AgentDriver and AgentDataPlane on
// the simulated network, simulated trainers that push every tensor round after round, and the
// checks of all these.
class AgentProcess : private TransportWatcher, private RankHearing, private agent::MemorySource {
 public:
  struct Config {
    std::string job_name;
    uint32_t node = 0;
    uint32_t rank_count = 1;
    Incarnation incarnation;
    std::string host_id;  // "": on a host of its own.
    const Profile* profile = nullptr;
    // The agent says that it has given up a node that had no connection.
    std::function<void(NodeRank node)> on_given_up;
    // The agent's life is over, and it has said goodbye.
    std::function<void(const AgentProcess* process)> on_ended;
  };

  AgentProcess(Timeline* timeline, Trace* trace, Network* network, SchedulerProcess* scheduler,
               std::map<JobId, Ledger>* ledgers, HostIndex host, const Config& config);

  void Start();
  void KillRank(LocalRank rank);
  // Sends something that no agent should send, on a connection of this agent.
  void Confuse();
  void ConfuseRank(LocalRank rank);
  // The agent receives a message that no real aggregator sends.
  void Forge();
  // Tells the agent to stop: its ranks have a while to finish, then it says goodbye and ends.
  void Stop();

  // Its end of the network.
  Process* process() { return &transport_; }

  const pipeline::AgentCore& core() const { return driver_.core(); }
  const std::string& name() const { return name_; }
  // Returns whether every rank has finished its rounds, or was told why it cannot.
  bool Settled() const;
  // Returns since when some rank has waited for more than ranks of this node that are at their own
  // work between rounds; nullopt if none does. 0: since it began, or since it came to a boundary.
  std::optional<int64_t> WaitsSince() const;
  std::string Unsettled() const;
  bool AllRanksDone() const;
  bool left() const { return left_; }
  // Returns whether the agent should have ended, because nobody needs it any more.
  bool Lingers() const;
  // Since when it has been connected to all aggregators.
  std::optional<int64_t> connected_since_ns() const { return connected_since_ns_; }
  // Returns whether all aggregators also see their ends open. An aggregator may notice a break
  // before this agent does.
  bool ConnectedAtBothEnds() const;
  bool Failed() const { return core().views().has_failed(); }
  // When the last frame that the agent has read was sent.
  int64_t frame_sent_ns() const { return transport_.frame_sent_ns(); }
  // Rule 8: if `view` lets joiners in, all ranks have ended as many steps as it says, and wait.
  void CheckAtBoundary(const view::View& view) const;

 private:
  // The time of a pass of the data thread that finds something, and of one that sums.
  static constexpr uint64_t kPassNs = 20 * kMicrosecond;
  static constexpr uint64_t kReduceNs = 50 * kMicrosecond;
  // How long the kernel takes to give memory, at most, where it is late.
  static constexpr uint64_t kMemoryNs = 2 * kSecond;
  enum class RankState : uint8_t { kStarting, kDeclaring, kTraining, kDone, kFailed, kDead };
  struct RankTensor {
    bool is_mine = true;  // Whether the rank takes part in it.
    bool declared = false;
    bool failed = false;  // The tensor has failed, and the trainer goes on without it.
    pipeline::TensorIndex index;
    Round pushed;
    int64_t pushed_ns = 0;
    Round taken;
    // The rounds whose contributions the last push had; only if they leave late ranks out.
    std::vector<Round> gives;
    // The last round that it has asked about, and the ranks here that had pushed it by then.
    Round asked;
    std::vector<bool> pushed_when_asked;
    // If its calls go on when a rank is lost: how many are over, and the ranks that the call has
    // found so far.
    uint64_t calls = 0;
    bool has_lost_a_rank = false;
    bool is_reducing = false;  // The call is at its reductions.
    std::optional<std::vector<Ledger::RankOfMember>> found;
  };
  struct RankProcess {
    RankState state = RankState::kStarting;
    bool confused = false;
    bool welcome = false;      // The agent has greeted it.
    uint64_t steps = 0;        // How many it has ended.
    uint64_t stop_at = 0;      // As in RankServer::PublishStop.
    bool at_boundary = false;  // It waits until it may begin the next.
    std::string text;
    std::vector<RankTensor> tensors;  // As the profile's.
  };
  // The part of a round's result that a rank has copied while it arrives.
  struct Arriving {
    Round round;
    uint64_t bytes = 0;  // More than the tensor has if something came twice.
    std::shared_ptr<Cells> cells;
  };
  struct Allocated {
    TensorKey key;
    pipeline::TensorSpec spec;
    Arriving arriving;
  };

  // --- TransportWatcher.
  void OnWake() override { PollLater(kPassNs); }
  void OnFramePosted(ConnectionId connection, std::span<const std::byte> bytes) override;
  void OnEvent(ConnectionId connection, std::span<const std::byte> bytes, bool is_end,
               const std::function<void()>& deliver) override;
  void OnToken(const transport::TokenClaim&, const std::string&) override {}
  void OnLanding(wire::RemoteRef, uint64_t) override {}

  // --- RankHearing.
  void OnSaid() override { PollLater(kPassNs); }
  void OnWelcome(LocalRank rank) override;
  void OnDeclared(LocalRank rank, uint32_t request, const shm::DeclaredData& data) override;
  void OnDeclarationRefused(LocalRank rank, uint32_t request, shm::RankStatus status,
                            const std::string& text) override;
  void OnCompletion(const shm::RankServer::Completion& completion) override;
  void OnDisconnected(LocalRank rank, const std::string& text) override;
  void OnJobFailed(const std::string& text) override;
  uint64_t OnStopPublished(LocalRank rank, uint64_t stop_at) override;
  void OnMembership(LocalRank rank, uint32_t request, const shm::RankMembership& answer) override;
  void OnTold(LocalRank rank, uint32_t request, const std::string& text) override;

  // --- agent::MemorySource.
  void Ask(agent::OrderNumber number, agent::MemoryOrder order) override;

  // agent_process.cc

  // Runs `act` on the daemon, then checks it.
  void Run(const std::function<void()>& act);
  void Later(int64_t delay_ns, std::function<void()> event);
  void SayHello(LocalRank rank);
  // Does a turn of the duty cycle.
  void Poll();
  void PollLater(uint64_t most_ns);
  void WakeAt(int64_t deadline_ns);
  // Returns the token for an aggregator that it connects to.
  std::optional<transport::TokenClaim> NextToken();
  void OnMemberEvent(const rpc::MemberEvent& event);
  void OnView(const view::View& view);
  // Sees each effect of the core before the driver performs it.
  void Watch(const pipeline::Effect& effect);
  void WatchSend(pipeline::Send& send);
  void WatchArrived(const pipeline::SliceArrived& arrived);
  void WatchAllocate(const pipeline::AllocateTensor& allocate);
  void WatchFailure(const std::string& text);
  void OnTensorFailed(const pipeline::FailTensor& failed);
  std::string Details(const pipeline::Send& send) const;

  // agent_checks.cc
  void CheckCredit(ConnectionId connection, const wire::Frame& frame);
  void ContributeEarly(ConnectionId connection, const wire::Header& header);
  void CheckFenced(const wire::Header& header);
  void NoteReceived(ConnectionId connection, const wire::Frame& frame);
  void NoteConnected();
  void CheckAfterwards();
  void ForgeDecision(ConnectionId connection, const wire::Frame& frame,
                     const std::vector<wire::Decision>& decisions);
  void CheckDecision(const wire::Decision& decision);
  void CheckTold() const;
  void NoteAnswer(bool answered);
  void CheckGivenUp(const std::string& text);

  // agent_ranks.cc
  void StartRanks();
  void DeclareNext(LocalRank rank);
  void OnDeclareReply(LocalRank rank, size_t place, pipeline::TensorIndex index, Round held);
  void PushNext(LocalRank rank);
  void Push(LocalRank rank, size_t tensor);
  void Declare(LocalRank rank, uint32_t request, const pipeline::TensorSpec& spec);
  void Say(LocalRank rank, const pipeline::Push& push);
  void Take(LocalRank rank, size_t tensor, const pipeline::CompleteRound& complete, Epoch epoch);

  // agent_carry.cc
  static bool IsLeftOut(LocalRank rank, const pipeline::CompleteRound& complete);
  // Returns the first cell of the rank's next contribution, and how much each next cell adds.
  std::pair<uint64_t, uint64_t> NextContribution(LocalRank rank, RankTensor& tensor,
                                                 const Allocated& allocated);
  void NoteLeftOut(LocalRank rank, RankTensor& tensor, const pipeline::CompleteRound& complete);
  void WatchReduce(const pipeline::ReduceSlice& reduce);

  // agent_gathers.cc

  // Returns the place of the tensor through which the calls of the one at `tensor` go on, or whose
  // calls go on through it; nullopt if there is none.
  std::optional<size_t> PartnerOf(size_t tensor) const;
  bool GoesOn(size_t tensor) const { return plans_[tensor]->tensor().goes_on_by > 0; }
  // Returns whether each rank hears from its own call that a tensor has lost a rank, and goes on.
  bool HearsFromItsCall(pipeline::TensorIndex tensor) const;
  // How many rounds, or calls, are over.
  uint64_t Progress(const RankProcess& rank, size_t tensor) const;
  bool IsReduction(size_t tensor) const { return plans_[tensor]->tensor().is_of_survivors; }
  // Returns whether the rank has nothing under way of a tensor, and may push it in this step.
  bool MayPush(const RankProcess& rank, size_t tensor) const;
  // Returns the tensor that is pushed for the rank's next call.
  size_t BeginCall(LocalRank rank, size_t tensor);
  void NoteCall(LocalRank rank, size_t tensor, const pipeline::CompleteRound& complete,
                Epoch epoch);
  void EndCall(LocalRank rank, size_t gather, Epoch epoch);

  // agent_hasty.cc

  // The rank waits for the round that it has just pushed.
  void WaitNow(LocalRank rank, size_t tensor);
  void OnTimeUp(LocalRank rank, size_t tensor, Round round);
  void AskWhom(LocalRank rank, size_t tensor);
  void WriteEarly(LocalRank rank, size_t tensor);
  void NoteWaiting(const wire::Frame& frame);

  // The memory of a rank's contribution.
  std::span<std::byte> ContributionOf(LocalRank rank, pipeline::TensorIndex tensor);
  // Returns whether the rank's contribution and the result share memory.
  bool IsInPlace(LocalRank rank, pipeline::TensorIndex tensor) const;
  void Scribble(LocalRank rank, pipeline::TensorIndex tensor);
  Cells ResultCells(pipeline::TensorIndex tensor, Round round);
  std::vector<uint64_t> LengthsOf(pipeline::TensorIndex tensor, Round round);
  Cells ResultOf(LocalRank rank, size_t place, const pipeline::CompleteRound& complete);
  std::optional<Ledger::RankOfMember> RankAt(const std::optional<view::Place>& place) const;
  std::optional<Rank> NumberOf(const view::Place& place) const;
  std::optional<Ledger::RankOfMember> RootOf(size_t tensor) const;
  std::vector<view::MemberIdentity> NeededBy(size_t tensor) const;
  RoundPlan ProposedPlan(size_t tensor) const;
  void AgreeOnPlans();
  bool IsRootByNumber(size_t tensor, LocalRank rank) const;
  bool Gets(size_t tensor, uint32_t part) const;
  void CheckTravels(const wire::Contribute& entry) const;
  void CheckMismatch(const std::string& who, const std::string& text) const;
  void NoteRound(size_t tensor, const pipeline::CompleteRound& complete) const;
  void NotePlacement(const view::Group& group, const pipeline::AgentTensor& tensor) const;
  void GoOnWithout(pipeline::TensorIndex tensor);
  void CheckDone(LocalRank rank);
  void FailRankWith(LocalRank rank, const std::string& text, bool may_linger = false);
  pipeline::TensorSpec SpecOf(LocalRank rank, size_t tensor) const;

  // agent_steps.cc

  // Returns the round of every tensor at which the step ends.
  uint64_t EndOfStep(const RankProcess& rank) const;
  bool HasEndedStep(const RankProcess& rank) const;
  // Ends the rank's step. Returns whether the rank may go on.
  bool EndStep(LocalRank rank);
  void Ask(LocalRank rank, shm::BoundaryQuestion question, uint64_t steps, Epoch epoch);

  // agent_standby.cc: the state that a standby gets while the others do steps.
  struct SideTensor {
    std::string name;
    view::MemberIdentity other;
    uint64_t round_count = 0;
    pipeline::TensorIndex index;
    bool declared = false;
    bool over = false;
    Round pushed;
  };
  bool IsStandbyIn(const view::View& view) const;
  // A full member meets the newest view's standbys, and a standby the view's full members.
  void MeetStandbys();
  // The ranks now have the numbers of the view of `epoch`; `follows` false: it is too old.
  void OnFollowed(bool follows, Epoch epoch);
  void Meet(const view::View& view);
  void DeclareSide(size_t side);
  void OnSideDeclared(size_t side, pipeline::TensorIndex index, Round held);
  void OnSideRefused(size_t side, shm::RankStatus status, const std::string& text);
  void PushSide(size_t side);
  void TakeSide(size_t side, const pipeline::CompleteRound& complete);
  void EndSide(size_t side);
  std::optional<size_t> SideOf(pipeline::TensorIndex index) const;
  bool RankPushes() const;

  Timeline* const timeline_;
  Trace* const trace_;
  Network* const network_;
  SchedulerProcess* const scheduler_;
  std::map<JobId, Ledger>* const ledgers_;
  const HostIndex host_;
  const Config config_;
  const std::string name_;
  bool forges_decision_ = false;  // Before the next true decision.
  // Contribution bytes that are in flight, by the transport's ids of connections. nullopt if a
  // confused agent has sent bytes that its core does not know of.
  std::map<ConnectionId, std::optional<uint64_t>> in_flight_;
  // The last few frames.
  std::deque<std::pair<ConnectionId, std::vector<std::byte>>> contributions_sent_;
  // The last report on each connection.
  std::map<ConnectionId, std::vector<std::byte>> reports_sent_;
  uint32_t tokens_made_ = 0;
  bool lies_ = false;               // In its next report.
  bool contributes_early_ = false;  // After its next Hello, before the Welcome.

  const SimClock clock_;
  const CellCombiner combiner_;
  const CellCodec codec_;
  SimTransport transport_;
  agent::MemberRegistrar registrar_;
  SimRankServer rank_server_;
  agent::AgentDriver driver_;
  agent::AgentDataPlane data_plane_;
  int64_t memory_ns_ = 0;  // When the last memory that was asked for comes.
  bool refuses_memory_ = false;
  bool poll_due_ = false;
  int64_t wake_ns_ = 0;
  bool ended_ = false;  // Its life is over.
  bool told_to_stop_ = false;
  std::map<pipeline::TensorIndex, Allocated> allocated_;
  std::set<TensorKey> in_place_;  // Tensors that ranks here have declared in place.
  std::vector<RankProcess> ranks_;
  // The nodes that owners have named of a tensor's round in an epoch, if ranks ask.
  std::map<std::tuple<TensorKey, Round, Epoch>, std::set<uint32_t>> awaited_;
  Random hasty_;                         // Chooses what ranks do whose time is over.
  std::vector<const RoundPlan*> plans_;  // As the profile's tensors.

  JobId job_;
  bool knows_standbys_ = false;
  bool is_ready_ = true;                 // Its ranks are ready, or know no standbys.
  std::vector<SideTensor> sides_;        // Those with local rank 0.
  bool has_met_ = false;                 // Whether it has met the full members as a standby.
  Ledger* ledger_ = nullptr;             // The joined job's.
  std::optional<view::View> told_view_;  // The first view, which numbers the ranks.
  bool follows_ = false;                 // Whether they follow it.
  bool left_ = false;
  bool out_ = false;
  Epoch epoch_;
  Epoch epoch_reported_;
  // Since when the scheduler has been silent to this agent.
  std::optional<int64_t> silent_since_ns_;
  std::optional<int64_t> answers_since_ns_;  // Since when it answers again after a silence.
  bool relapsed_ = false;                    // It fell silent again before it could decide.
  int64_t undecided_since_ns_ = 0;           // When the first of these silences began.
  std::optional<int64_t> connected_since_ns_;
};

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_AGENT_PROCESS_H_
