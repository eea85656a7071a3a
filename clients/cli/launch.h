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
#include "clients/cli/rank_marks.h"
#include "clients/cli/supervisor.h"

namespace talweg::cli {

// The result of a run.
struct LaunchResult {
  int exit_status = 0;
  std::string report;  // What went wrong; empty if nothing did.
  // The CPU time of all ranks and daemons that have ended.
  int64_t rank_cpu_ns = 0;
  int64_t daemon_cpu_ns = 0;
};

// One run of a plan:
//
//   kScheduler -> kAggregators -> kAgents -> kRanks
//     -> kEndingRanks -> kEndingAgents -> kEndingAggregators -> kEndingScheduler -> kOver
//
// A phase before kRanks ends when all its daemons serve; kRanks ends when all nodes are over. An
// agent that fails before kRanks is started again as often as the plan allows. After that, or if a
// scheduler or an aggregator ends by itself before it serves, the failure decides the exit status,
// and leads to kEndingRanks: all processes are asked to end, and killed when `grace_ms` is over. A
// second signal ends everything at once.
//
// In kRanks each node has a life of its own (node_life.h). A rank or an agent that fails ends its
// node, unless the ranks outlive their agent. The node, or its agent, is started again as often as
// the plan allows. If the plan needs all nodes, all nodes fail together, and a lost node ends the
// run. If the plan goes on without lost nodes, the run succeeds when all ranks of the remaining
// nodes do, and reports the lost ones. A node that is back after the others have ended well counts
// as lost when its ranks look for a job, because nobody is left to let them in.
//
// A scheduler that ends is started again with its store and its address, because steps do not need
// it. An aggregator is started again if the run can go on meanwhile.
//
// An agent may fail because one of its ranks has died, a moment before that rank is reaped. So the
// agent's failure is held back for a while, in case a rank is to blame. A rank's failure is held
// back, too, while another rank that said earlier that its program fails has not ended yet.
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
    uint32_t index = 0;  // The aggregator's number, or the node of an agent or a rank.
    uint32_t local_rank = 0;
  };
  // The reasons for a timer.
  enum class Timer {
    kPhase,       // Daemons do not serve, or processes do not end, in time.
    kServes,      // An agent that was started later does not serve in time.
    kSuspicion,   // No rank was found to blame for an agent's end.
    kHeld,        // No rank was found to blame for other ranks' ends.
    kNode,        // A node's time (NodeLife::OnTime) has come.
    kLate,        // Look again whether the nodes that are left look for a job in vain.
    kGrace,       // The rest of a node does not end in time.
    kScheduler,   // Start the scheduler again.
    kAggregator,  // Start the aggregator again.
  };
  using TimerKey = std::pair<Timer, uint32_t>;
  // How a child has ended, and the text that reports it.
  struct Failure {
    ChildId child;
    int exit_status = 0;
    std::string what;
    // A rank whose program had ended before. `exit_status` is this rank's, once it is known.
    std::optional<ChildId> cause = std::nullopt;
  };

  const Child& At(ChildId child) const { return children_[child.value()]; }
  bool ending() const { return phase_ >= Phase::kEndingRanks; }
  void Enter(Phase phase);
  void SetTimer(TimerKey key, int64_t at_ns);
  void CancelTimer(TimerKey key);
  void OnTimerOf(TimerKey key);

  // Starts a process. If that fails, ends the run and returns false.
  bool Start(Child child, const ChildSpec& spec);
  void StartScheduler();
  void StartAggregator(uint32_t index);
  void StartAgent(uint32_t node);
  void StartRanks(uint32_t node);
  // All daemons of the phase serve, or it has none.
  void Continue();
  // Ends the run with that status, unless it is ending already.
  void End(int exit_status, const std::string& report, int signal_number);

  // A scheduler or an aggregator has ended.
  void OnDaemonEnd(const Failure& failure);
  // An agent has ended, in kAgents.
  void OnEarlyAgentEnd(const Failure& failure);
  // A rank or an agent has failed, in kRanks.
  void OnNodeFailure(const Failure& failure);
  // Returns the rank that first said that its program has ended, of those that still run, and
  // when; nullopt: none has.
  std::optional<std::pair<int64_t, ChildId>> FirstToFail() const;
  // Returns whether another rank said so before this one, and has not ended.
  bool AwaitsFirst(ChildId rank) const;
  // Handles the held failures that need not wait any more, or all of them.
  void ReleaseHeld(bool all);
  // Tells the node's NodeLife that a child has ended, and does its action.
  void TellNode(ChildId child, bool well);
  void Do(uint32_t node, NodeAction action);
  void SayOfFailure(uint32_t node, const std::string& what);
  // Ends the run when all nodes are over, or when those that are not come back too late.
  void EndIfDone();

  // Asks all processes of these roles to end. The next phase begins when none of them is left.
  void Ask(const std::set<Role>& roles, int signal_number);
  bool AnyRunning(const std::set<Role>& roles) const;
  std::set<Role> RolesOfPhase() const;
  std::vector<pid_t> DaemonPids() const;
  void SignalRoles(const std::set<Role>& roles, int signal_number);
  void SignalNode(uint32_t node, int signal_number);
  // Kills what the ranks of a node that has ended have started and left.
  void KillLeftBy(uint32_t node);
  void NoteFirst(const Failure& failure);
  // The rank that is the first failure's cause has ended with that status. If it is not 0, the run
  // ends with it.
  void BlameCause(int exit_status);

  const RunPlan& plan_;
  Supervisor& supervisor_;
  const RankMarks marks_;
  Phase phase_ = Phase::kScheduler;
  std::vector<Child> children_;  // By ChildId.
  std::map<uint32_t, NodeLife> nodes_;
  Restarts scheduler_restarts_;
  std::vector<Restarts> aggregator_restarts_;
  std::map<TimerKey, int64_t> timers_;
  std::set<ChildId> waiting_;               // Daemons of this phase that do not serve yet.
  std::string scheduler_;                   // Its address.
  std::map<uint32_t, std::string> agents_;  // Their admin addresses.
  // The open ports, and whose they are: "talweg-agent of node 0 (admin) ...".
  std::vector<std::string> ports_;
  std::optional<Failure> first_;  // The first failure.
  // An agent that has failed, perhaps because of a rank that is about to end.
  struct Suspect {
    Failure failure;
    // Its timer has rung once. It was extended if a rank had said that it fails.
    bool rank_fails = false;
  };
  std::map<uint32_t, Suspect> suspects_;  // By node.
  std::vector<Failure> held_;             // Failures of ranks that wait for the first one.
  bool signalled_ = false;
  int ending_signal_ = 0;
  LaunchResult result_;
};

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_LAUNCH_H_
