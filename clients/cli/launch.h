// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_LAUNCH_H_
#define TALWEG_CLIENTS_CLI_LAUNCH_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "clients/cli/node_life.h"
#include "clients/cli/plan.h"
#include "clients/cli/supervisor.h"

namespace talweg::cli {

// How a run went.
struct LaunchResult {
  int exit_status = 0;
  std::string report;  // What went wrong, for people; empty when nothing did.
  // All ranks and daemons that have ended.
  int64_t rank_cpu_ns = 0;
  int64_t daemon_cpu_ns = 0;
};

// One run of a plan:
//
//   kScheduler -> kAggregators -> kAgents -> kRanks
//     -> kEndingRanks -> kEndingAgents -> kEndingAggregators -> kEndingScheduler -> kOver
//
// A phase before kRanks is left when all its daemons serve; kRanks when all nodes are over.
// Whatever fails before kRanks decides the exit status, and leads to kEndingRanks: everyone is
// asked to end, and killed when the grace is over. A second signal ends everything at once.
//
// In kRanks each node has a life of its own (node_life.h). A rank or an agent that fails ends its
// node, unless the ranks outlive their agent. The node, or its agent, is started again as often as
// the plan says. Where the plan does not go on without nodes that are lost, all nodes fail with it,
// and a node that is lost ends the run; otherwise the run has gone well when all ranks of the nodes
// that are left have, and what was lost is reported.
//
// A scheduler that ends is started again, with its store and its address: steps do not need it. So
// is an aggregator, where the run can go on meanwhile.
//
// An agent that fails may do so because one of its ranks has died, which may be a moment before
// that rank is reaped: such an end waits for a rank to blame. So does that of a rank whose program
// has ended by an error, while another one, which has said before that its program does, has not
// ended yet.
class Launch : public SupervisorEvents {
 public:
  Launch(const RunPlan& plan, Supervisor& supervisor);

  // Blocks until everything has ended.
  LaunchResult Run();

  void OnReady(ChildId child, const std::string& line) override;
  void OnExit(ChildId child, const ExitStatus& status) override;
  void OnSignal(int signal_number) override;
  void OnTimer() override;
  void OnOutputGone() override;

 private:
  enum class Phase {
    kScheduler,
    kAggregators,
    kAgents,
    kRanks,
    kEndingRanks,
    kEndingAgents,
    kEndingAggregators,
    kEndingScheduler,
    kOver,
  };
  enum class Role { kScheduler, kAggregator, kAgent, kRank };
  struct Child {
    Role role;
    uint32_t index = 0;  // Which aggregator; the node of an agent or a rank.
    uint32_t local_rank = 0;
  };
  // What something is done at a time for.
  enum class Timer {
    kPhase,       // Daemons do not serve, or processes do not end.
    kServes,      // An agent that was started later does not serve.
    kSuspicion,   // No rank is to blame for an agent's end.
    kHeld,        // Nor for those of other ranks.
    kNode,        // What a node waits for has come.
    kGrace,       // What is left of a node does not end.
    kScheduler,   // Is started again.
    kAggregator,  // Likewise.
  };
  using TimerKey = std::pair<Timer, uint32_t>;
  // How a child has ended, and what that is reported as.
  struct Failure {
    ChildId child;
    int exit_status = 0;
    std::string what;
  };

  const Child& At(ChildId child) const { return children_[child.value()]; }
  bool ending() const { return phase_ >= Phase::kEndingRanks; }
  void Enter(Phase phase);
  void SetTimer(TimerKey key, int64_t at_ns);
  void CancelTimer(TimerKey key);
  void OnTimerOf(TimerKey key);

  // Starts a process; ends the run, and says false, when it does not start.
  bool Start(Child child, const ChildSpec& spec);
  void StartScheduler();
  void StartAggregator(uint32_t index);
  void StartAgent(uint32_t node);
  void StartRanks(uint32_t node);
  // The phase's daemons all serve, or it had none.
  void Continue();
  // Ends the run with that status, unless it is ending already.
  void End(int exit_status, const std::string& report, int signal_number);

  // A scheduler or an aggregator has ended.
  void OnDaemonEnd(const Failure& failure);
  // A rank or an agent has failed, in kRanks.
  void OnNodeFailure(const Failure& failure);
  // When a rank said that it ends by an error.
  std::optional<int64_t> FailsSince(ChildId rank) const;
  // The first time at which one said so that has not ended; nullopt: none has.
  std::optional<int64_t> FirstFailsSince() const;
  // Whether a rank that has failed so was not the first, and the first has not ended.
  bool AwaitsFirst(ChildId rank) const;
  // Goes on with those that do not, or with `all`.
  void ReleaseHeld(bool all);
  // Tells a node's life of an end, and does what follows.
  void TellNode(ChildId child, bool well);
  void Do(uint32_t node, NodeAction action);
  // Whether all ranks of the node say that they do if their agent fails, and have a job to go on
  // in.
  bool RanksOutlive(uint32_t node) const;
  bool NeedsAgent(uint32_t node) const;
  void SayOfFailure(uint32_t node, const std::string& what);
  // Ends the run when all nodes are over.
  void EndIfDone();

  // Asks all of these roles to end; goes on when none of them is left.
  void Ask(const std::set<Role>& roles, int signal_number);
  bool AnyRunning(const std::set<Role>& roles) const;
  std::set<Role> RolesOfPhase() const;
  std::vector<pid_t> DaemonPids() const;
  void SignalRoles(const std::set<Role>& roles, int signal_number);
  void SignalNode(uint32_t node, int signal_number);
  void NoteFirst(const Failure& failure);

  const RunPlan& plan_;
  Supervisor& supervisor_;
  Phase phase_ = Phase::kScheduler;
  std::vector<Child> children_;  // By ChildId.
  std::map<uint32_t, NodeLife> nodes_;
  Restarts scheduler_restarts_;
  std::vector<Restarts> aggregator_restarts_;
  std::map<TimerKey, int64_t> timers_;
  std::set<ChildId> waiting_;               // Daemons of this phase that do not serve yet.
  std::string scheduler_;                   // Its address.
  std::map<uint32_t, std::string> agents_;  // Their admin addresses.
  std::vector<std::string>
      ports_;                     // That are open, and whose: "talweg-agent of node 0 (admin) ...".
  std::optional<Failure> first_;  // That has failed.
  // An agent that has failed, maybe because of a rank that is about to end.
  struct Suspect {
    Failure failure;
    bool rank_fails = false;  // It was asked whether one has said so, and has had its time if so.
  };
  std::map<uint32_t, Suspect> suspects_;  // By node.
  std::vector<Failure> held_;             // Ranks that await the first.
  bool signalled_ = false;
  int ending_signal_ = 0;
  LaunchResult result_;
};

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_LAUNCH_H_
