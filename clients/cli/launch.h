// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_LAUNCH_H_
#define TALWEG_CLIENTS_CLI_LAUNCH_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "clients/cli/plan.h"
#include "clients/cli/supervisor.h"

namespace talweg::cli {

// How a run went.
struct LaunchResult {
  int exit_status = 0;
  std::string report;  // What went wrong, for people; empty when nothing did.
  // Of all ranks and daemons that have ended.
  int64_t rank_cpu_ns = 0;
  int64_t daemon_cpu_ns = 0;
};

// One run of a plan:
//
//   kScheduler -> kAggregators -> kAgents -> kRanks
//     -> kEndingRanks -> kEndingAgents -> kEndingAggregators -> kEndingScheduler -> kOver
//
// A phase before kRanks is left when all its daemons serve; kRanks when all ranks have ended.
// Whatever fails first, in any phase, decides the exit status, and leads to kEndingRanks: everyone
// is asked to end, and killed when the grace is over. A second signal ends everything at once.
//
// Where the plan goes on without nodes that are lost, a rank or an agent that fails in kRanks takes
// its node with it, and nobody else while there are other nodes. Such a run has gone well when all
// ranks of the nodes that are left have; what was lost is reported nevertheless.
//
// An agent ends well by itself when its ranks are done, and badly when one of them has died, which
// may be a moment before that rank is reaped: such an end waits for a rank to blame.
class Launch : public SupervisorEvents {
 public:
  Launch(const RunPlan& plan, Supervisor& supervisor) : plan_(plan), supervisor_(supervisor) {}

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
    uint32_t node = 0;  // Of an agent or a rank.
  };
  struct NodeSpec {
    ChildSpec spec;
    uint32_t node = 0;  // Of an agent or a rank.
  };

  const Child& At(ChildId child) const { return children_[child.value()]; }
  bool ending() const { return phase_ >= Phase::kEndingRanks; }
  void Enter(Phase phase);
  // Starts the phase's processes; fails the run when one does not start.
  void Start(Role role, const std::vector<NodeSpec>& specs);
  // The phase's daemons all serve, or it had none.
  void Continue();
  // Ends the run with that status, unless it is ending already.
  void End(int exit_status, const std::string& report, int signal_number);
  // `child` has failed, and the run with it, or only its node.
  void Blame(ChildId child, int exit_status, const std::string& what);
  void LoseNode(uint32_t node, const std::string& what);
  // Ends the run when no rank is at work any more whose node is not lost.
  void EndIfDone();
  // Asks all of these roles to end; goes on when none of them is left.
  void Ask(const std::set<Role>& roles, int signal_number);
  bool AnyRunning(const std::set<Role>& roles) const;
  std::set<Role> RolesOfPhase() const;
  std::vector<pid_t> DaemonPids() const;
  void SignalRoles(const std::set<Role>& roles, int signal_number);

  const RunPlan& plan_;
  Supervisor& supervisor_;
  Phase phase_ = Phase::kScheduler;
  std::vector<Child> children_;  // By ChildId.
  std::set<uint32_t> lost_nodes_;
  // Ranks whose end OnExit has not told of. The supervisor may have reaped several at once.
  std::set<ChildId> ranks_at_work_;
  std::set<ChildId> waiting_;        // Daemons of this phase that do not serve yet.
  std::string scheduler_;            // Its address.
  std::vector<std::string> agents_;  // Their admin addresses.
  std::vector<std::string>
      ports_;  // That are open, and whose: "talweg-agent of node 0 (admin) ...".
  std::optional<ChildId> failed_;
  // A daemon that has ended by itself while ranks are at work, and what that would be reported as.
  std::optional<ChildId> suspect_;
  int suspect_status_ = 0;
  std::string suspect_what_;
  bool signalled_ = false;
  int ending_signal_ = 0;
  LaunchResult result_;
};

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_LAUNCH_H_
