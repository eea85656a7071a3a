// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_AGENT_BELL_H_
#define TALWEG_LIBS_SHM_CLIENT_AGENT_BELL_H_

#include <atomic>
#include <cstdint>

#include "libs/shm/client/agent_link.h"

namespace talweg::shm {

// Whoever polls in a loop asks the kernel now and then, not every time.
inline constexpr int64_t kLookEveryNs = 1'000'000;

// Ends the agent's sleep when that is due (docs/shared_memory.md, "Pushing, completing, sleeping").
// Any thread may call anything; nothing blocks.
class AgentBell {
 public:
  explicit AgentBell(AgentLink& link) : link_(link) {}

  // Which sleep of the agent is to end: any; one that pushes end; one that lasts until somebody
  // waits.
  enum class Sleeping : uint8_t { kAnyhow, kUntilRung, kUntilAwaited };
  void Ring(Sleeping sleeping);
  // For a thread that polls, which no count includes. It rings also where ranks can tell each other
  // of rounds, because one of them may be too old to tell.
  void RingForPoll(bool needs_agent);

 private:
  AgentLink& link_;
  std::atomic<uint32_t> rung_{0};  // The sleep of the agent that the last Doorbell was for.
  std::atomic<int64_t> poll_rang_ns_{0};
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_AGENT_BELL_H_
