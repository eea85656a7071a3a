// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_COMPLETIONS_H_
#define TALWEG_LIBS_SHM_CLIENT_COMPLETIONS_H_

#include <cstddef>
#include <cstdint>

#include "libs/shm/client/agent_link.h"
#include "libs/shm/client/client_health.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/client/lock.h"
#include "libs/shm/client/rank_memory.h"
#include "libs/shm/client/rank_tensor.h"
#include "libs/shm/client/waiting.h"
#include "libs/shm/client/watchers.h"

namespace talweg::shm {

// Rounds that a descriptor tells of (docs/shared_memory.md, "A descriptor that tells of rounds").
// For the agent a descriptor with watches is a sleeping thread. Any thread may call any function;
// none blocks.
class Completions {
 public:
  Completions(AgentLink& link, ClientHealth& health, const RankMemory& memory, Watchers& watchers,
              Waiting& waiting, Mutex& state_mutex)
      : link_(link),
        health_(health),
        memory_(memory),
        watchers_(watchers),
        waiting_(waiting),
        state_mutex_(state_mutex) {}

  // A negative `fd` is the client's first descriptor.
  RankStatus Watch(int fd, const RankTensor& tensor, uint64_t round, uint64_t tag,
                   ErrorText& error);
  // Returns an error only if there is no round left to tell.
  RankStatus Completed(int fd, uint64_t* tags, size_t capacity, size_t* count, ErrorText& error);

 private:
  AgentLink& link_;
  ClientHealth& health_;
  const RankMemory& memory_;
  Watchers& watchers_;
  Waiting& waiting_;
  Mutex& state_mutex_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_COMPLETIONS_H_
