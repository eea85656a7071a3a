// SPDX-License-Identifier: Apache-2.0
#include "services/agent/agent_life.h"

#include <algorithm>
#include <utility>

namespace talweg::agent {
namespace {

// How long the last messages may take to leave.
constexpr int64_t kLeavingNs = 500'000'000;
// How long ranks that stay connected keep a failed job's agent alive.
constexpr int64_t kFailedLingerNs = 30'000'000'000;

}  // namespace

const char* LifeStateName(LifeState state) {
  switch (state) {
    case LifeState::kServing: return "serving";
    case LifeState::kDraining: return "draining";
    case LifeState::kFailed: return "failed";
    case LifeState::kLeaving: return "leaving";
    case LifeState::kEnded: return "ended";
  }
  return "unknown";
}

void AgentLife::OnRanksDone() {
  ranks_done_ = state_ == LifeState::kServing || state_ == LifeState::kDraining;
}

bool AgentLife::OnStop(const std::string& why, int64_t now_ns) {
  if (!stop_why_.empty() || Leaves()) return false;
  stop_why_ = why.empty() ? "stopped" : why;
  stop_deadline_ns_ = now_ns + config_.drain_ns;
  if (state_ == LifeState::kServing) state_ = LifeState::kDraining;
  return true;
}

void AgentLife::OnFailed(const std::string& text, int64_t now_ns) {
  if (state_ != LifeState::kServing && state_ != LifeState::kDraining) return;
  state_ = LifeState::kFailed;
  since_ns_ = now_ns;
  failed_text_ = text;
  ranks_done_ = false;
}

int64_t AgentLife::FailedUntilNs(const LifeSight& sight) const {
  const int64_t until_ns = since_ns_ + (sight.any_attached ? kFailedLingerNs : config_.drain_ns);
  return stop_deadline_ns_ ? std::min(until_ns, *stop_deadline_ns_) : until_ns;
}

LifeStep AgentLife::Leave(bool finished, const std::string& text, int64_t now_ns) {
  state_ = LifeState::kLeaving;
  since_ns_ = now_ns;
  end_ = {finished, text};
  return LifeStep::kLeave;
}

LifeStep AgentLife::Advance(const LifeSight& sight, int64_t now_ns) {
  switch (state_) {
    case LifeState::kServing:
    case LifeState::kDraining: break;
    case LifeState::kFailed: {
      const bool nobody_to_tell = !sight.any_attached && (ever_attached_ || stop_deadline_ns_);
      if (!nobody_to_tell && now_ns < FailedUntilNs(sight)) return LifeStep::kNone;
      return Leave(false, failed_text_, now_ns);
    }
    case LifeState::kLeaving:
      if (!sight.words_have_left && now_ns < since_ns_ + kLeavingNs) return LifeStep::kNone;
      state_ = LifeState::kEnded;
      return LifeStep::kEnd;
    case LifeState::kEnded: return LifeStep::kNone;
  }
  const bool draining = state_ == LifeState::kDraining;
  if (ranks_done_) {
    if (!sight.gpus_are_idle) return LifeStep::kNone;
    ranks_done_ = false;
    if (config_.alone && !draining) return LifeStep::kServeOthers;
    return Leave(true, "all ranks are done", now_ns);
  }
  if (!draining) return LifeStep::kNone;
  if (!sight.any_attached) return Leave(config_.alone, stop_why_, now_ns);
  if (now_ns < *stop_deadline_ns_ || ranks_had_their_time_) return LifeStep::kNone;
  ranks_had_their_time_ = true;
  return LifeStep::kFailTheRanks;
}

std::optional<int64_t> AgentLife::NextNs(const LifeSight& sight) const {
  switch (state_) {
    case LifeState::kServing:
    case LifeState::kEnded: break;
    case LifeState::kDraining: return stop_deadline_ns_;
    case LifeState::kFailed: return FailedUntilNs(sight);
    case LifeState::kLeaving: return since_ns_ + kLeavingNs;
  }
  return std::nullopt;
}

}  // namespace talweg::agent
