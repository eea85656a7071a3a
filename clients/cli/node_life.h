// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_NODE_LIFE_H_
#define TALWEG_CLIENTS_CLI_NODE_LIFE_H_

#include <cstdint>
#include <optional>

#include "clients/cli/restarts.h"

namespace talweg::cli {

enum class NodeState : uint8_t {
  kOff,       // Nothing has been started.
  kStarting,  // Its agent does not serve yet, and its ranks have not been started.
  kReady,     // Its agent serves; its ranks have not been started.
  kWorking,   // Its ranks are at work.
  kLeft,      // Its ranks are at work, and have left the job that their agent was in.
  kBereft,    // Its ranks have outlived their agent, and wait for another one to be started.
  kRenewing,  // Its ranks are at work, and another agent does not serve yet.
  kEnding,    // It has failed, and its remaining processes are being ended.
  kPausing,   // It has failed, all its processes have ended, and it will be started again.
  kDone,      // Its ranks have ended well.
  kLost,      // It has failed for good.
};
const char* NodeStateName(NodeState state);

// What the owner of a NodeLife does next.
enum class NodeAction : uint8_t {
  kNone,
  kStartAgent,
  kStartRanks,
  kAwaitNeed,  // Call OnTime() in a while, with whether a rank needs an agent again.
  kEndAll,     // End its ranks and its agent.
  kPause,      // Call OnTime() at start_at_ns().
  kForget,     // All processes of a lost node have ended.
  kFinish,
};

// One node of a run: an agent and its ranks, over several of their lives.
//
//   kOff --Start--> kStarting --agent serves--> kReady --StartRanks--> kWorking --ranks end well-->
//   kDone
//                                                       kWorking --agent ends well--> kLeft
//                        kLeft --a rank needs one--> kRenewing --agent serves--> kWorking
//             kWorking, kRenewing --agent fails, ranks outlive it--> kBereft
//                                       kBereft --its time comes--> kRenewing
//   from any of these but kDone: --Fail--> kEnding --all have ended--> kPausing, or kLost
//                                               kPausing --its time comes--> kStarting
//
// An agent ends well when all its ranks have said goodbye. A rank that calls init() again needs
// another agent, and says so. A rank that is about to end, however long it takes, does not.
//
// Pure: no process, no clock. Each event returns the owner's next action.
class NodeLife {
 public:
  NodeLife(uint32_t rank_count, const RestartPolicy& policy)
      : rank_count_(rank_count), restarts_(policy) {}

  NodeAction Start();       // Only in kOff and kPausing.
  NodeAction StartRanks();  // Only in kReady.
  NodeAction OnAgentServes();
  // `is_outlived`: the ranks say that they wait for another agent.
  NodeAction OnAgentEnds(bool well, int64_t now_ns, bool is_outlived = false);
  NodeAction OnRankEnds(bool well, int64_t now_ns);
  // The node has failed, or has to end because another node that it needs has failed.
  NodeAction Fail(int64_t now_ns);
  // The time of kAwaitNeed or kPause has come. `is_needed`: a rank says that it needs an agent.
  NodeAction OnTime(bool is_needed = false);

  NodeState state() const { return state_; }
  // Returns whether the node has failed for good, though some of its processes may still run.
  bool lost() const {
    return state_ == NodeState::kLost || (state_ == NodeState::kEnding && !starts_again_);
  }
  bool over() const { return state_ == NodeState::kDone || lost(); }
  // Returns whether its ranks are at work.
  bool works() const {
    return state_ == NodeState::kWorking || state_ == NodeState::kLeft ||
           state_ == NodeState::kBereft || state_ == NodeState::kRenewing;
  }
  // Returns whether its ranks have left a job, and may begin another one.
  bool ranks_have_left() const { return ranks_have_left_; }
  // Returns whether it, or its agent alone, has ever failed and been started again.
  bool has_failed() const { return has_failed_; }
  // When a failed node that is not lost, or only its agent, is started again.
  int64_t start_at_ns() const { return start_at_ns_; }
  const Restarts& restarts() const { return restarts_; }

 private:
  NodeAction To(NodeState state, NodeAction action);
  NodeAction CheckEnded();
  NodeAction OnAgentFails(int64_t now_ns, bool is_outlived);

  const uint32_t rank_count_;
  Restarts restarts_;
  NodeState state_ = NodeState::kOff;
  bool agent_runs_ = false;
  uint32_t ranks_running_ = 0;
  bool has_worked_ = false;  // Its ranks have been started before.
  bool ranks_have_left_ = false;
  bool has_failed_ = false;
  bool starts_again_ = false;
  int64_t start_at_ns_ = 0;
};

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_NODE_LIFE_H_
