// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/node_life.h"

#include "libs/base/check.h"

namespace talweg::cli {

const char* NodeStateName(NodeState state) {
  switch (state) {
    case NodeState::kOff: return "off";
    case NodeState::kStarting: return "starting";
    case NodeState::kReady: return "ready";
    case NodeState::kWorking: return "working";
    case NodeState::kLeft: return "left";
    case NodeState::kBereft: return "bereft";
    case NodeState::kRenewing: return "renewing";
    case NodeState::kEnding: return "ending";
    case NodeState::kPausing: return "pausing";
    case NodeState::kDone: return "done";
    case NodeState::kLost: return "lost";
  }
  return "unknown";
}

NodeAction NodeLife::To(NodeState state, NodeAction action) {
  state_ = state;
  return action;
}

NodeAction NodeLife::Start() {
  TALWEG_CHECK(state_ == NodeState::kOff || state_ == NodeState::kPausing);
  agent_runs_ = true;
  return To(NodeState::kStarting, NodeAction::kStartAgent);
}

NodeAction NodeLife::StartRanks() {
  TALWEG_CHECK(state_ == NodeState::kReady);
  ranks_running_ = rank_count_;
  has_worked_ = true;
  ranks_have_left_ = false;
  return To(NodeState::kWorking, NodeAction::kStartRanks);
}

NodeAction NodeLife::OnAgentServes() {
  switch (state_) {
    case NodeState::kStarting:
      state_ = NodeState::kReady;
      // The first ranks wait until the whole run is ready.
      return has_worked_ ? StartRanks() : NodeAction::kNone;
    case NodeState::kRenewing: return To(NodeState::kWorking, NodeAction::kNone);
    default: return NodeAction::kNone;
  }
}

NodeAction NodeLife::OnAgentEnds(bool well, int64_t now_ns, bool is_outlived) {
  agent_runs_ = false;
  switch (state_) {
    case NodeState::kWorking:
      if (!well) return OnAgentFails(now_ns, is_outlived);
      ranks_have_left_ = true;
      return To(NodeState::kLeft, NodeAction::kAwaitNeed);
    case NodeState::kRenewing: return OnAgentFails(now_ns, is_outlived);
    case NodeState::kStarting:
    case NodeState::kReady: return Fail(now_ns);
    case NodeState::kEnding: return CheckEnded();
    default: return NodeAction::kNone;
  }
}

NodeAction NodeLife::OnAgentFails(int64_t now_ns, bool is_outlived) {
  const std::optional<int64_t> start_at_ns =
      is_outlived ? restarts_.OnFailure(now_ns) : std::nullopt;
  if (!start_at_ns) return Fail(now_ns);
  has_failed_ = true;
  start_at_ns_ = *start_at_ns;
  return To(NodeState::kBereft, NodeAction::kPause);
}

NodeAction NodeLife::OnRankEnds(bool well, int64_t now_ns) {
  --ranks_running_;
  switch (state_) {
    case NodeState::kWorking:
    case NodeState::kLeft:
    case NodeState::kBereft:
    case NodeState::kRenewing:
      if (!well) return Fail(now_ns);
      return ranks_running_ == 0 ? To(NodeState::kDone, NodeAction::kFinish) : NodeAction::kNone;
    case NodeState::kEnding: return CheckEnded();
    default: return NodeAction::kNone;
  }
}

NodeAction NodeLife::Fail(int64_t now_ns) {
  if (over() || state_ == NodeState::kEnding || state_ == NodeState::kPausing) {
    return NodeAction::kNone;
  }
  const std::optional<int64_t> start_at_ns = restarts_.OnFailure(now_ns);
  starts_again_ = start_at_ns.has_value();
  start_at_ns_ = start_at_ns.value_or(0);
  has_failed_ = true;
  state_ = NodeState::kEnding;
  const NodeAction ended = CheckEnded();
  return ended == NodeAction::kNone ? NodeAction::kEndAll : ended;
}

NodeAction NodeLife::CheckEnded() {
  if (agent_runs_ || ranks_running_ > 0) return NodeAction::kNone;
  return starts_again_ ? To(NodeState::kPausing, NodeAction::kPause)
                       : To(NodeState::kLost, NodeAction::kForget);
}

NodeAction NodeLife::OnTime(bool is_needed) {
  if (state_ == NodeState::kPausing) return Start();
  if (state_ == NodeState::kLeft && !is_needed) return NodeAction::kAwaitNeed;
  if (state_ != NodeState::kLeft && state_ != NodeState::kBereft) return NodeAction::kNone;
  agent_runs_ = true;
  return To(NodeState::kRenewing, NodeAction::kStartAgent);
}

}  // namespace talweg::cli
