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
#include <vector>

#include "libs/pipeline/agent_core.h"
#include "services/agent/agent_data_plane.h"
#include "services/agent/agent_driver.h"
#include "tests/sim/agent_link.h"
#include "tests/sim/ledger.h"
#include "tests/sim/network.h"
#include "tests/sim/profile.h"
#include "tests/sim/scheduler_process.h"
#include "tests/sim/sim_rank_server.h"
#include "tests/sim/sim_transport.h"

namespace talweg::sim {

// No tensor comes so far: contributions to it must not be taken.
inline constexpr Round kConfusedRound{1'000'000};
// Declarations of side tensors are numbered from there.
inline constexpr uint32_t kSideRequests = 1000;
// More ranks than any node has.
inline constexpr uint32_t kConfusedRankCount = 8;

// Somebody has sent one: tensors fail of which nothing else is wrong.
inline constexpr const char* kFalseReport = "reports that cannot all be true";

// What is said of a round that some hold, and others cannot get any more.
inline constexpr const char* kLostRound = "what others were to get of it is lost";

// Somebody has heard what no aggregator of ours says.
inline constexpr const char* kForged = "words of a confused aggregator";

// Adds cells as the ledger does, in the order of the ranks.
class CellCombiner final : public agent::RankCombiner {
 public:
  void Combine(const pipeline::TensorSpec& spec, bool is_final,
               std::span<const std::byte* const> inputs,
               std::span<std::byte> output) const override;
};

// One life of one node's agent, with its ranks: the daemon's own AgentDriver and AgentDataPlane on
// the simulated network, simulated trainers that push every tensor round after round, and what the
// world checks of them.
class AgentProcess : private TransportWatcher, private RankHearing {
 public:
  struct Config {
    std::string job_name;
    uint32_t node = 0;
    uint32_t rank_count = 1;
    Incarnation incarnation;
    std::string host_id;  // "": a host of its own.
    const Profile* profile = nullptr;
    // It has given up a node that has had no connection, it says.
    std::function<void(NodeRank node)> on_given_up;
    // Its life is over, and it has said goodbye.
    std::function<void(const AgentProcess* process)> on_ended;
  };

  AgentProcess(Timeline* timeline, Trace* trace, Network* network, SchedulerProcess* scheduler,
               std::map<JobId, Ledger>* ledgers, HostIndex host, const Config& config);

  void Start();
  void KillRank(LocalRank rank);
  // Sends what no agent should send, on a connection of its own.
  void Confuse();
  void ConfuseRank(LocalRank rank);
  // Hears what no aggregator of ours says.
  void Forge();
  // Told to stop: its ranks have a while to finish, then it says goodbye and ends.
  void Stop();

  // To the network.
  Process* process() { return &transport_; }

  const pipeline::AgentCore& core() const { return driver_.core(); }
  const std::string& name() const { return name_; }
  // Every rank has finished its rounds, or has been told why it cannot.
  bool Settled() const;
  // Some rank is not at its own work between rounds, and waits for more than other ranks of this
  // node that are.
  bool WaitsForSomebody() const;
  std::string Unsettled() const;
  bool AllRanksDone() const;
  bool left() const { return left_; }
  // It should have ended, as nobody needs it any more.
  bool Lingers() const;
  // To all aggregators, since when.
  std::optional<int64_t> connected_since_ns() const { return connected_since_ns_; }
  // And they to it: one whose end of a connection has broken may notice so before this one does.
  bool ConnectedAtBothEnds() const;
  bool Failed() const { return core().views().has_failed(); }
  // When the frame was sent that it has read last.
  int64_t frame_sent_ns() const { return transport_.frame_sent_ns(); }
  // Rule 8: where `view` lets joiners in all ranks have ended as many steps as it says, and wait.
  void CheckAtBoundary(const view::View& view) const;

 private:
  // What a pass of the data thread takes that finds something, and one that sums.
  static constexpr uint64_t kPassNs = 20 * kMicrosecond;
  static constexpr uint64_t kReduceNs = 50 * kMicrosecond;
  enum class RankState : uint8_t { kStarting, kDeclaring, kTraining, kDone, kFailed, kDead };
  struct RankTensor {
    bool is_mine = true;  // The rank takes part in it.
    bool declared = false;
    bool failed = false;  // The trainer goes on without it.
    pipeline::TensorIndex index;
    Round pushed;
    Round taken;
  };
  struct RankProcess {
    RankState state = RankState::kStarting;
    bool confused = false;
    bool welcome = false;      // The agent has greeted it.
    uint64_t steps = 0;        // That it has ended.
    uint64_t stop_at = 0;      // As in RankServer::PublishStop.
    bool at_boundary = false;  // It waits until it may begin the next.
    std::string text;
    std::vector<RankTensor> tensors;  // As the profile's.
  };
  // What a rank copies of a round's result while it comes.
  struct Arriving {
    Round round;
    uint64_t bytes = 0;  // More than the tensor has: something came twice.
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

  // agent_process.cc
  // Does something to the daemon, and looks at it afterwards.
  void Run(const std::function<void()>& act);
  void Later(int64_t delay_ns, std::function<void()> event);
  void SayHello(LocalRank rank);
  // A turn of its duty cycle.
  void Poll();
  void PollLater(uint64_t most_ns);
  void WakeAt(int64_t deadline_ns);
  // What it shows an aggregator that it connects to.
  std::optional<transport::TokenClaim> NextToken();
  void OnMemberEvent(const rpc::MemberEvent& event);
  void OnView(const view::View& view);
  // Effects of the core, before the driver performs them.
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
  // Where a rank has what it gives, and what it gets of a round.
  std::span<std::byte> ContributionOf(LocalRank rank, pipeline::TensorIndex tensor);
  void Scribble(LocalRank rank, pipeline::TensorIndex tensor);
  Cells ResultCells(pipeline::TensorIndex tensor, Round round);
  std::vector<uint64_t> LengthsOf(pipeline::TensorIndex tensor, Round round);
  Cells ResultOf(pipeline::TensorIndex tensor, size_t place,
                 const pipeline::CompleteRound& complete);
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
  // In rounds of every tensor.
  uint64_t EndOfStep(const RankProcess& rank) const;
  bool HasEndedStep(const RankProcess& rank) const;
  // Whether it may go on.
  bool EndStep(LocalRank rank);
  void Ask(LocalRank rank, shm::BoundaryQuestion question, uint64_t steps, Epoch epoch);

  // agent_standby.cc: what a standby takes over beside the others' steps.
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
  // Full members do with the newest view's standbys, and a standby with its full members.
  void MeetStandbys();
  // Ranks have the numbers of the view of `epoch`, or it is too old.
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
  bool forges_decision_ = false;  // In front of the next true one.
  // By the transport's names of connections. Contribution bytes that are under way, as the wire has
  // it; none where a confused agent has sent what its core does not know of.
  std::map<ConnectionId, std::optional<uint64_t>> in_flight_;
  std::deque<std::pair<ConnectionId, std::vector<std::byte>>> contributions_sent_;  // The last few.
  std::map<ConnectionId, std::vector<std::byte>> reports_sent_;  // The last frame of each.
  uint32_t tokens_made_ = 0;
  bool lies_ = false;               // In its next report.
  bool contributes_early_ = false;  // After its next Hello, welcome or not.

  const SimClock clock_;
  const CellCombiner combiner_;
  SimTransport transport_;
  SimRankServer rank_server_;
  agent::AgentDriver driver_;
  agent::AgentDataPlane data_plane_;
  bool poll_due_ = false;
  int64_t wake_ns_ = 0;
  bool ended_ = false;  // Its life is over.
  bool told_to_stop_ = false;
  std::map<pipeline::TensorIndex, Allocated> allocated_;
  std::set<TensorKey> in_place_;  // Tensors that ranks here have declared so.
  std::vector<RankProcess> ranks_;
  std::vector<const RoundPlan*> plans_;  // As the profile's tensors.

  JobId job_;
  bool knows_standbys_ = false;
  bool is_ready_ = true;                 // Its ranks are, or know no standbys.
  std::vector<SideTensor> sides_;        // Local rank 0 is in them.
  bool has_met_ = false;                 // As a standby.
  Ledger* ledger_ = nullptr;             // The joined job's.
  std::optional<view::View> told_view_;  // The first one: ranks have their numbers from it.
  bool follows_ = false;                 // They have them.
  bool left_ = false;
  bool out_ = false;
  Epoch epoch_;
  Epoch epoch_reported_;
  std::optional<int64_t> silent_since_ns_;   // The scheduler, to this agent.
  std::optional<int64_t> answers_since_ns_;  // After a silence.
  bool relapsed_ = false;                    // It fell silent again before it could decide.
  int64_t undecided_since_ns_ = 0;           // The first of those silences.
  std::optional<int64_t> connected_since_ns_;
};

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_AGENT_PROCESS_H_
