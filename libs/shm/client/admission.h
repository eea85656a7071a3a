// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_ADMISSION_H_
#define TALWEG_LIBS_SHM_CLIENT_ADMISSION_H_

#include <atomic>
#include <cstdint>

#include "libs/shm/client/agent_link.h"
#include "libs/shm/client/client_health.h"
#include "libs/shm/client/client_identity.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/client/rank_memory.h"
#include "libs/shm/client/streaming.h"
#include "libs/shm/client/tensor_table.h"
#include "libs/shm/layout/messages.h"

namespace talweg::shm {

// The agent's answer to this rank's Hello. The thread that connects calls Begin, reads the socket
// until is_answered(), and calls End. For all other parts the outcome is constant.
class Admission {
 public:
  Admission(AgentLink& link, ClientHealth& health, ClientIdentity& identity, Streaming& streaming,
            RankMemory& memory, TensorTable& tensors)
      : link_(link),
        health_(health),
        identity_(identity),
        streaming_(streaming),
        memory_(memory),
        tensors_(tensors) {}

  // `cache_bytes`: as for Streaming::Begin. `error` must stay valid until End.
  void Begin(uint64_t cache_bytes, ErrorText& error);
  bool is_answered() const { return answered_.load(); }
  // Returns kOk, or why the rank is not admitted; the text is in the `error` that Begin got.
  RankStatus End();

  // Called by the reader. Drops every Welcome except the first, and one that nobody waits for.
  void Take(const Welcome& welcome);

 private:
  RankStatus Admit(const Welcome& welcome, ErrorText& error);

  AgentLink& link_;
  ClientHealth& health_;
  ClientIdentity& identity_;
  Streaming& streaming_;
  RankMemory& memory_;
  TensorTable& tensors_;
  uint64_t cache_bytes_ = 0;
  ErrorText* error_ = nullptr;  // While the rank connects.
  RankStatus status_ = RankStatus::kOk;
  std::atomic<bool> answered_{false};
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_ADMISSION_H_
