// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_PUSHES_H_
#define TALWEG_LIBS_SHM_CLIENT_PUSHES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libs/shm/client/agent_bell.h"
#include "libs/shm/client/agent_link.h"
#include "libs/shm/client/client_health.h"
#include "libs/shm/client/client_statistics.h"
#include "libs/shm/client/deadline.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/client/lock.h"
#include "libs/shm/client/rank_tensor.h"
#include "libs/shm/client/round_states.h"
#include "libs/shm/client/steps.h"
#include "libs/shm/client/streaming.h"
#include "libs/shm/client/transfers.h"
#include "libs/shm/client/waiting.h"
#include "libs/shm/layout/control.h"

namespace talweg::shm {

// How a rank contributes to a round: it copies its bytes into the contribution buffer, and puts the
// push into the ring (docs/shared_memory.md, "Pushing, completing, sleeping"). Any thread may call
// any function. A call waits only while the ring is full. The ring has its own lock; a thread that
// holds it may take the client's state mutex.
class Pushes {
 public:
  Pushes(AgentLink& link, ClientHealth& health, AgentBell& bell, const RoundStates& states,
         const Steps& steps, Streaming& streaming, Waiting& waiting, ClientStatistics& statistics,
         Mutex& state_mutex)
      : link_(link),
        health_(health),
        bell_(bell),
        states_(states),
        steps_(steps),
        streaming_(streaming),
        waiting_(waiting),
        statistics_(statistics),
        state_mutex_(state_mutex) {}

  // Where the next push takes its bytes from.
  void* Contribution(const RankTensor& tensor) const;
  // `data`: the parts that the rank gives, one after another; null: they lie in the contribution
  // buffer. `declared_priority`: use the tensor's own priority.
  RankStatus Push(RankTensor& tensor, const void* data, const PushedParts& parts,
                  bool declared_priority, int32_t priority, int64_t timeout_ns, uint64_t* round,
                  ErrorText& error);
  // Pushes bytes in a GPU buffer at `offset`. The tensor's event was recorded before.
  RankStatus PushOnDevice(RankTensor& tensor, uint32_t buffer, uint64_t offset,
                          bool declared_priority, int32_t priority, int64_t timeout_ns,
                          uint64_t* round, ErrorText& error);

 private:
  // A push on its way into the ring.
  struct Pushing {
    RingEntry entry;
    bool is_short = false;     // Whether some part is not full.
    uint64_t bytes = 0;        // How many bytes the rank gives.
    std::byte* own = nullptr;  // Where the part goes that the rank gives to itself.
  };

  // Marks the tensor as being pushed, from `data` unless that is null. *contribution is where bytes
  // in host memory go.
  RankStatus Begin(RankTensor& tensor, const void* data, std::byte** contribution,
                   bool* nobody_sums, ErrorText& error);
  // Puts the push into the ring, and rings the doorbell.
  RankStatus Finish(RankTensor& tensor, Pushing push, bool declared_priority, int64_t timeout_ns,
                    uint64_t* round, ErrorText& error);
  // Undoes Begin: the push is not made.
  void Abandon(RankTensor& tensor);
  // Whether this push repeats the open round. If it does, the tensor is marked as being pushed.
  bool PushesAgain(RankTensor& tensor);

  // Whether `data` is the address that Contribution returned.
  static bool IsContribution(const RankTensor& tensor, const void* data,
                             const std::byte* contribution);
  // Computes how many bytes the push has, from its lengths.
  static RankStatus CheckParts(const RankTensor& tensor, const PushedParts& parts, Pushing* push,
                               ErrorText& error);
  // Where the rank's part for itself may go now, without overwriting what the rank gives.
  static std::byte* OwnPlace(const RankTensor& tensor, const std::byte* data,
                             const PushedParts& parts);
  // Copies the parts that the rank gives to the contribution buffer. If `own` is not null, the part
  // that the rank gets goes there as well; if no other rank gets that part, CopyOwn copies it
  // instead.
  void CopyIn(const RankTensor& tensor, const std::byte* data, const PushedParts& parts,
              std::byte* contribution, std::byte* own);
  // For a tensor that leaves late ranks out.
  static RankStatus CheckMayLeaveOut(const RankTensor& tensor, const Pushing& push,
                                     const void* data, const std::byte* contribution,
                                     ErrorText& error);
  // Copies the part that no other rank gets, after the push.
  void CopyOwn(const RankTensor& tensor, const std::byte* data, const PushedParts& parts,
               std::byte* own);
  // Adds what the rank gives to what the contribution buffer still holds (RankTensor::carries). The
  // tensor has one part. Nothing is added unless the ring has room.
  RankStatus AddIn(RankTensor& tensor, const void* data, std::byte* contribution,
                   const Deadline& deadline, ErrorText& error);
  // Writes the parts' lengths into the contribution's table.
  void SayParts(RankTensor& tensor, const uint64_t* lengths);

  // Waits until the ring has room for a push. kTimeout: nothing was pushed.
  RankStatus AwaitRoom(const RankTensor& tensor, const Deadline& deadline, ErrorText& error);
  RankStatus RingPush(RankTensor& tensor, Pushing push, const Deadline& deadline, uint64_t* round,
                      ErrorText& error);
  uint64_t RingEntries() const {
    return submitted_.load(std::memory_order_relaxed) -
           link_.control().consumed_line().consumed.load(std::memory_order_seq_cst);
  }
  bool RingFills() const { return RingEntries() >= link_.control().shape().ring_capacity / 2; }

  AgentLink& link_;
  ClientHealth& health_;
  AgentBell& bell_;
  const RoundStates& states_;
  const Steps& steps_;
  Streaming& streaming_;
  Waiting& waiting_;
  ClientStatistics& statistics_;
  Mutex& state_mutex_;
  Mutex ring_mutex_;
  std::atomic<uint64_t> submitted_{0};  // The ring's tail.
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_PUSHES_H_
