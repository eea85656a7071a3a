// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DAEMON_RANK_MEMORY_H_
#define TALWEG_LIBS_SHM_DAEMON_RANK_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "libs/base/ids.h"
#include "libs/shm/daemon/outcome.h"
#include "libs/shm/daemon/shared_arena.h"
#include "libs/shm/daemon/unbacked_memory.h"
#include "libs/shm/layout/messages.h"
#include "libs/shm/layout/parts.h"

namespace talweg::shm {

// One rank's connection to this agent. Never reused.
using RankConnectionId = StrongId<struct RankConnectionIdTag, uint64_t>;

// The memory of one rank's contribution to one tensor. The agent only reads it, and trusts no byte:
// the rank can write to it at any time.
struct ContributionBuffer {
  Location location;
  std::span<const std::byte> bytes;
  UnbackedMemory unbacked = {};
};

// The memory of a tensor's results of one parity, or of both. Only the agent writes it; or agent
// and rank write by turns (AllocateOnePlace).
struct ResultBuffer {
  Location location;
  std::span<std::byte> bytes;
  UnbackedMemory unbacked = {};
};

// Allocates the memory that an agent shares with its ranks. One owner thread.
class RankMemory {
 public:
  virtual ~RankMemory() = default;

  // Memory for tensors. kOutOfMemory names the limit, the used amount and the remedy. Buffers are
  // aligned to 64 bytes and zeroed. A buffer is used only after its `unbacked` was backed: a lack
  // of memory would end the process that touches it. `bytes`: BufferShape::total_bytes, which
  // includes the table of lengths.
  virtual Outcome<ContributionBuffer> AllocateContribution(RankConnectionId connection,
                                                           uint64_t bytes) = 0;
  // For a tensor of a node's only rank, which writes its contribution there and finds the result
  // there. The buffer has its own pages. Otherwise as AllocateContribution. kClosed: the rank is
  // gone.
  virtual Outcome<ResultBuffer> AllocateOnePlace(RankConnectionId connection, uint64_t bytes) = 0;
  // For tensors that the ranks sum: plans where every rank's contribution lies, until
  // DropTensorMemory, and makes that place in one rank's arena. The rank has the kernel back the
  // pages. kOutOfMemory, kLimit.
  virtual Outcome<SharedPlace> PlanContribution(const BufferShape& shape, bool in_place) = 0;
  virtual Outcome<Location> PlaceContribution(RankConnectionId connection,
                                              const SharedPlace& place) = 0;
  // Lasts until DropTensorMemory. `bytes`: as for contributions. If parts of a round may not be
  // full, the agent writes the round's table before it publishes the round. Ranks read the lengths
  // of the parts that they get there, unless all ranks give the same single part and theirs was
  // full.
  virtual Outcome<ResultBuffer> AllocateResult(uint64_t bytes) = 0;
  // Drops results and places, so that other ranks can have tensors. Every rank that was told of any
  // is gone, and released.
  virtual void DropTensorMemory() = 0;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_RANK_MEMORY_H_
