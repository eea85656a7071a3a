// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_CLIENT_HEALTH_H_
#define TALWEG_LIBS_SHM_CLIENT_CLIENT_HEALTH_H_

#include <atomic>
#include <cstdint>

#include "libs/shm/client/agent_link.h"
#include "libs/shm/client/agent_watch.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/client/lock.h"
#include "libs/shm/layout/rank_status.h"

namespace talweg::shm {

// Whether the client can go on: the job may have failed, the agent may be lost, the client may have
// been shut down. Such an end is final. Any thread may call any function, except those marked as
// the reader's (waiting.h).
class ClientHealth {
 public:
  ClientHealth(AgentLink& link, Mutex& state_mutex) : link_(link), state_mutex_(state_mutex) {}

  // Whether nothing can go on any more. *status says why; FailOver says it in words.
  bool Over(RankStatus* status) const;
  RankStatus FailOver(RankStatus status, const char* what, ErrorText& error) const;

  // The agent cannot be talked to. Only the first call counts. `format` takes the socket's path,
  // then `detail`.
  void Lose(RankStatus status, const char* format, const char* detail);
  bool is_lost(std::memory_order order = std::memory_order_seq_cst) const {
    return lost_.load(order) != 0;
  }

  // Shuts the client down. Returns false if that had happened before.
  bool Close() { return !closed_.exchange(true); }
  bool is_closed(std::memory_order order = std::memory_order_seq_cst) const {
    return closed_.load(order);
  }

  // `silence_ms`, from the Welcome: how long the agent may show no sign of life; 0: it is not
  // watched.
  void WatchAgent(uint32_t silence_ms) { agent_watch_.Begin(silence_ms); }
  bool watches_agent() const { return agent_watch_.watches(); }
  // The reader's. The agent is lost if it has shown no sign of life for that long.
  void LookAtBeats();

 private:
  AgentLink& link_;
  Mutex& state_mutex_;
  std::atomic<uint32_t> lost_{0};  // RankStatus; not 0: the agent cannot be talked to.
  std::atomic<bool> closed_{false};
  char lost_text_[kTextBytesMax + 1] = "";  // Written once, before lost_.
  AgentWatch agent_watch_;                  // The reader's.
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_CLIENT_HEALTH_H_
