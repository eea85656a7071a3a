// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_INBOX_H_
#define TALWEG_LIBS_SHM_CLIENT_INBOX_H_

#include <atomic>
#include <cstdint>

#include "libs/shm/client/admission.h"
#include "libs/shm/client/agent_link.h"
#include "libs/shm/client/answers.h"
#include "libs/shm/client/client_health.h"
#include "libs/shm/client/lock.h"
#include "libs/shm/client/rank_memory.h"
#include "libs/shm/client/tensor_table.h"
#include "libs/shm/layout/messages.h"

namespace talweg::shm {

// Hands each message of the agent to the part that it is for. The reader (waiting.h) calls it,
// except where a comment says otherwise.
class Inbox {
 public:
  Inbox(AgentLink& link, ClientHealth& health, Admission& admission, Answers& answers,
        RankMemory& memory, TensorTable& tensors, Mutex& state_mutex)
      : link_(link),
        health_(health),
        admission_(admission),
        answers_(answers),
        memory_(memory),
        tensors_(tensors),
        state_mutex_(state_mutex) {}

  // Handles everything that the socket holds. Does not wait. Invalid bytes, and the end of the
  // socket, lose the agent.
  void Read();
  // Whether the agent has answered this rank's goodbye. Any thread.
  bool has_goodbye() const { return goodbye_.load(); }

 private:
  void TakeDeclared(const Message& message, const Declared& declared);
  // Ends the client if something that the agent gives was not taken. `makes_no_sense`: the text's
  // format if the agent has broken the protocol.
  void LoseUnlessTaken(const Problem& wrong, const char* makes_no_sense);

  AgentLink& link_;
  ClientHealth& health_;
  Admission& admission_;
  Answers& answers_;
  RankMemory& memory_;
  TensorTable& tensors_;
  Mutex& state_mutex_;
  uint32_t wakes_seen_ = 0;
  std::atomic<bool> goodbye_{false};
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_INBOX_H_
