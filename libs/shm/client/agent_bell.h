// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_AGENT_BELL_H_
#define TALWEG_LIBS_SHM_CLIENT_AGENT_BELL_H_

#include <atomic>
#include <cstdint>

#include "libs/shm/client/agent_link.h"

namespace talweg::shm {

// A thread that polls in a loop makes a system call at most this often.
inline constexpr int64_t kLookEveryNs = 1'000'000;

// Rings the doorbell, which ends the agent's sleep when a rank needs it (docs/shared_memory.md,
// "Pushing, completing, sleeping"). Any thread may call any function; none blocks.
class AgentBell {
 public:
  explicit AgentBell(AgentLink& link) : link_(link) {}

  // Which sleep of the agent to end: any sleep; one that ends at a push; one that lasts until a
  // thread waits.
  enum class Sleeping : uint8_t { kAnyhow, kUntilRung, kUntilAwaited };
  void Ring(Sleeping sleeping);
  // For a thread that polls, which no count of waiters includes. Rings also if ranks can see each
  // other's pushes, because one of them may be too old to show its own.
  void RingForPoll(bool needs_agent);

 private:
  AgentLink& link_;
  std::atomic<uint32_t> rung_{0};  // The agent's sleep that the last Doorbell was for.
  std::atomic<int64_t> poll_rang_ns_{0};
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_AGENT_BELL_H_
