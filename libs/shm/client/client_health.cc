// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/client_health.h"

#include <cstdio>
#include <cstring>

#include "libs/shm/layout/control.h"

namespace talweg::shm {

bool ClientHealth::Over(RankStatus* status) const {
  if (closed_.load(std::memory_order_relaxed)) {
    *status = RankStatus::kClosed;
    return true;
  }
  if (link_.is_admitted() && link_.control().agent_line().state.load(std::memory_order_seq_cst) !=
                                 static_cast<uint32_t>(JobState::kRunning)) {
    const uint32_t value =
        link_.control().agent_line().failure_status.load(std::memory_order_relaxed);
    *status = value != 0 && value < kRankStatusCount ? static_cast<RankStatus>(value)
                                                     : RankStatus::kJobFailed;
    return true;
  }
  if (const uint32_t lost = lost_.load(std::memory_order_acquire); lost != 0) {
    *status = static_cast<RankStatus>(lost);
    return true;
  }
  return false;
}

RankStatus ClientHealth::FailOver(RankStatus status, const char* what, ErrorText& error) const {
  if (closed_.load()) {
    return error.Fail(RankStatus::kClosed, "%s: the client has been shut down; connect anew", what);
  }
  if (link_.is_admitted() && link_.control().agent_line().state.load(std::memory_order_acquire) !=
                                 static_cast<uint32_t>(JobState::kRunning)) {
    return error.Fail(
        status, "%s: %.*s", what,
        static_cast<int>(::strnlen(link_.control().failure_text().text, kFailureTextBytes)),
        link_.control().failure_text().text);
  }
  return error.Fail(status, "%s: %s", what, lost_text_);
}

void ClientHealth::Lose(RankStatus status, const char* format, const char* detail) {
  const MutexLock lock(state_mutex_);
  if (lost_.load() != 0) return;
  // The socket's path names the agent; `detail` may be the agent's own words.
  std::snprintf(lost_text_, sizeof(lost_text_), format, link_.path(), detail);
  lost_.store(static_cast<uint32_t>(status), std::memory_order_release);
}

void ClientHealth::LookAtBeats() {
  if (!agent_watch_.watches() || lost_.load(std::memory_order_relaxed) != 0) return;
  const uint32_t beats = link_.control().agent_line().beats.load(std::memory_order_relaxed);
  if (!agent_watch_.IsSilent(beats, MonotonicNs())) return;
  char limit[32];
  std::snprintf(limit, sizeof(limit), "%.1f s", static_cast<double>(agent_watch_.limit_ns()) / 1e9);
  Lose(RankStatus::kAgentLost,
       "the agent at '%s' is stopped, or hangs: it has shown no sign of life for %s (its "
       "silence_ms)",
       limit);
  link_.socket().Shutdown();  // If the agent goes on, it finds this rank gone.
}

}  // namespace talweg::shm
