// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_WATCHERS_H_
#define TALWEG_LIBS_SHM_CLIENT_WATCHERS_H_

#include "libs/shm/client/agent_link.h"
#include "libs/shm/client/client_health.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/client/lock.h"
#include "libs/shm/client/rank_memory.h"
#include "libs/shm/client/round_states.h"
#include "libs/shm/client/tensor_table.h"
#include "libs/shm/client/watches.h"

namespace talweg::shm {

// The client's descriptors that tell of rounds, and when each becomes readable
// (docs/shared_memory.md, "A descriptor that tells of rounds"). Any thread may call any function.
// The descriptors stay open until the client is freed.
class Watchers {
 public:
  Watchers(AgentLink& link, ClientHealth& health, const RankMemory& memory,
           const TensorTable& tensors, const RoundStates& states, Mutex& state_mutex)
      : link_(link),
        health_(health),
        memory_(memory),
        tensors_(tensors),
        states_(states),
        state_mutex_(state_mutex) {}
  Watchers(const Watchers&) = delete;
  Watchers& operator=(const Watchers&) = delete;
  ~Watchers();

  // The client's first descriptor, the same at every call; and another one. kLimit, kOutOfMemory.
  RankStatus OpenFirst(int* fd, ErrorText& error);
  RankStatus OpenAnother(int* fd, ErrorText& error);
  // A negative `fd` means the first one. Returns null if there is no such descriptor.
  Watches* Find(int fd);
  static RankStatus FailNoDescriptor(int fd, ErrorText& error);

  bool IsOver(const Watches::Watch& watch) const;
  // Makes readable each descriptor with a watch that is over; makes all readable if the client's
  // health has ended. For the thread that has read the socket. `but`: the caller looks at these
  // watches itself.
  void Tell(const Watches* but = nullptr);
  // Makes all descriptors readable.
  void SignalAll() const;

 private:
  RankStatus Open(Watches& watches, int* fd, ErrorText& error);

  AgentLink& link_;
  ClientHealth& health_;
  const RankMemory& memory_;
  const TensorTable& tensors_;
  const RoundStates& states_;
  Mutex& state_mutex_;
  Watches first_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_WATCHERS_H_
