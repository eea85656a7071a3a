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
#include <string>
#include <vector>

#include "libs/membership/quiesce_follower.h"
#include "libs/pipeline/member.h"
#include "tests/sim/ledger.h"
#include "tests/sim/network.h"
#include "tests/sim/profile.h"
#include "tests/sim/scheduler_process.h"

namespace talweg::sim {

// No tensor comes so far: contributions to it must not be taken.
inline constexpr Round kConfusedRound{1'000'000};
// More ranks than any node has.
inline constexpr uint32_t kConfusedRankCount = 8;

// Somebody has sent one: tensors fail of which nothing else is wrong.
inline constexpr const char* kFalseReport = "reports that cannot all be true";

// What is said of a round that some hold, and others cannot get any more.
inline constexpr const char* kLostRound = "what others were to get of it is lost";

// Somebody has heard what no aggregator of ours says.
inline constexpr const char* kForged = "words of a confused aggregator";

// Writes the cells that an inline payload carries.
void StoreInlineCells(std::span<const std::byte> bytes, uint64_t* cells);

// One life of one node's agent, with its ranks: the pipeline core, its memory, and simulated
// trainers that push every tensor round after round.
class AgentProcess : public Process {
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
  // Ends for a reason of its own, and says so.
  void Stop();

  // --- Process.
  void OnFrameBytes(ConnectionId connection, std::span<const std::byte> bytes) override;
  void OnLinkOpen(ConnectionId connection) override;
  void OnLinkLost(ConnectionId connection, const std::string& reason) override;
  void OnWriteLanded(ConnectionId, uint64_t) override {}
  CellTarget Target(ConnectionId connection, wire::RemoteRef ref, uint64_t cells) override;

  const pipeline::Member& core() const { return core_; }
  const std::string& name() const { return name_; }
  // Every rank has finished its rounds, or has been told why it cannot.
  bool Settled() const;
  std::string Unsettled() const;
  bool AllRanksDone() const;
  bool left() const { return left_; }
  // To all aggregators, since when.
  std::optional<int64_t> connected_since_ns() const { return connected_since_ns_; }
  // And they to it: one whose end of a connection has broken may notice so before this one does.
  bool ConnectedAtBothEnds() const;
  bool Failed() const { return core_.phase() == pipeline::Phase::kFailed; }
  // Rule 8: where `view` lets joiners in all ranks have ended as many steps as it says, and wait.
  void CheckAtBoundary(const View& view) const;

 private:
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
    uint64_t steps = 0;        // That it has ended.
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
  struct TensorMemory {
    TensorKey key;
    pipeline::TensorSpec spec;
    std::vector<std::shared_ptr<Cells>> contributions;  // By local rank.
    std::shared_ptr<Cells> send;
    std::array<std::shared_ptr<Cells>, 2> results;
    std::array<uint64_t, 2> region_keys{};
    Arriving arriving;
    // The last completed round's.
    pipeline::CompleteRound completed;
  };

  // agent_process.cc
  void Run(const std::function<void(pipeline::Effects&)>& event);
  void NoteConnected();
  void Perform(pipeline::Effects& effects);
  void Perform(pipeline::Send& send);
  void Perform(const pipeline::WriteSlice& write);
  void Perform(const pipeline::ReduceSlice& reduce);
  void Perform(const pipeline::CopyInline& copy);
  void Perform(const pipeline::CopyOwn& copy);
  void Perform(const pipeline::SliceArrived& arrived);
  void Perform(const pipeline::AllocateTensor& allocate);
  std::shared_ptr<Cells> MemoryOf(const pipeline::SliceBytes& bytes);
  void Tick();
  void OnFailed(const std::string& text);
  void OnTensorFailed(const pipeline::FailTensor& failed);
  std::string Details(const pipeline::Send& send) const;
  void CheckCredit(const pipeline::Send& send);
  void CheckFenced(const pipeline::Send& send);
  void ForgeDecision(ConnectionId connection, const wire::Frame& frame,
                     const std::vector<wire::Decision>& decisions);
  void CheckDecision(const wire::Decision& decision);
  void CheckTold() const;

  // agent_ranks.cc
  void StartRanks();
  void DeclareNext(LocalRank rank);
  void OnDeclareReply(const pipeline::DeclareReply& reply);
  void PushNext(LocalRank rank);
  void Push(LocalRank rank, size_t tensor);
  void OnCompleted(const pipeline::CompleteRound& complete);
  void Take(LocalRank rank, size_t tensor, const pipeline::CompleteRound& complete, Epoch epoch);
  const Cells& ResultOf(const TensorMemory& memory, size_t tensor,
                        const pipeline::CompleteRound& complete);
  std::optional<Ledger::RankOfMember> RankAt(const std::optional<Place>& place) const;
  std::optional<Rank> NumberOf(const Place& place) const;
  std::optional<Ledger::RankOfMember> RootOf(size_t tensor) const;
  std::vector<MemberIdentity> NeededBy(size_t tensor) const;
  RoundPlan ProposedPlan(size_t tensor) const;
  void AgreeOnPlans();
  bool IsRootByNumber(size_t tensor, LocalRank rank) const;
  bool Gets(size_t tensor, uint32_t part) const;
  void CheckTravels(const wire::Contribute& entry) const;
  void CheckMismatch(const std::string& who, const std::string& text) const;
  void NoteRound(size_t tensor, const pipeline::CompleteRound& complete) const;
  void NotePlacement(const Group& group, const pipeline::Tensor& tensor) const;
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
  void Perform(const pipeline::StopRanks& stop);

  // agent_control.cc: what rpc::SchedulerClient does.
  int64_t RetryNs() const;
  membership::JoinRequest JoinRequest() const;
  void Join();
  void OnRefused(const membership::Answer& answer);
  void OnView(const View& view);
  void Attach();
  void Renew();
  void SendRenewal();
  // The node's ranks are there, and its agent says so.
  void AttachRanks();
  void OnMemberMessage(const membership::MemberMessage& message);
  void Report(const pipeline::ReportLost& lost);
  void LeaveJob(membership::LeaveReason reason);
  void ConfirmQuiesced(membership::QuiesceId id, uint64_t step);
  void ResumeFromQuiesce(membership::QuiesceId id);
  void Out(const std::string& text);
  void NoteAnswer(bool answered);
  void CheckGivenUp(const std::string& text);

  Timeline* const timeline_;
  Trace* const trace_;
  Network* const network_;
  SchedulerProcess* const scheduler_;
  std::map<JobId, Ledger>* const ledgers_;
  const HostIndex host_;
  const Config config_;
  const std::string name_;
  pipeline::Member core_;
  bool running_ = false;  // An event is being performed: others queue behind it.
  std::vector<std::function<void(pipeline::Effects&)>> queued_;
  const wire::Frame* frame_ = nullptr;  // That is being delivered.
  bool flush_due_ = false;
  bool forges_decision_ = false;  // In front of the next true one.
  // Contribution bytes that are under way, by connection, as the wire has it; none where a confused
  // agent has sent what its core does not know of.
  std::map<ConnectionId, std::optional<uint64_t>> in_flight_;
  std::deque<std::pair<ConnectionId, std::vector<std::byte>>> contributions_sent_;  // The last few.
  std::map<ConnectionId, std::vector<std::byte>> reports_sent_;  // The last frame of each.
  bool lies_ = false;                                            // In its next report.

  std::map<pipeline::TensorIndex, TensorMemory> memory_;
  std::map<uint64_t, std::pair<pipeline::TensorIndex, int>> regions_;
  uint64_t next_region_ = 1;
  std::vector<RankProcess> ranks_;
  std::optional<uint64_t> stop_;         // As in StopRanks.
  std::vector<const RoundPlan*> plans_;  // As the profile's tensors.

  JobId job_;
  bool ranks_attached_ = false;
  Ledger* ledger_ = nullptr;       // The joined job's.
  std::optional<View> told_view_;  // The first one: ranks have their numbers from it.
  bool left_ = false;
  bool out_ = false;
  uint64_t attachment_ = 0;
  Epoch epoch_;
  Epoch epoch_reported_;
  membership::QuiesceFollower quiesce_;
  std::optional<int64_t> joining_since_ns_;  // Without an answer.
  std::optional<int64_t> silent_since_ns_;   // The scheduler, to this agent.
  std::optional<int64_t> answers_since_ns_;  // After a silence.
  bool relapsed_ = false;                    // It fell silent again before it could decide.
  int64_t undecided_since_ns_ = 0;           // The first of those silences.
  std::optional<int64_t> connected_since_ns_;
};

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_AGENT_PROCESS_H_
