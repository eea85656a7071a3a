// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DAEMON_RANK_MEMORY_H_
#define TALWEG_LIBS_SHM_DAEMON_RANK_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "libs/base/ids.h"
#include "libs/shm/daemon/outcome.h"
#include "libs/shm/daemon/shared_arena.h"
#include "libs/shm/layout/messages.h"
#include "libs/shm/layout/parts.h"

namespace talweg::shm {

// One rank's connection to this agent. Never reused.
using RankConnectionId = StrongId<struct RankConnectionIdTag, uint64_t>;

// Memory of one tensor's contribution of one rank. The agent only reads it, and treats every byte
// as data: the rank can write to it at any time.
struct ContributionBuffer {
  Location location;
  std::span<const std::byte> bytes;
};

// Memory of one tensor's results, or of those of one parity. The agent alone writes it, or agent
// and rank by turns (AllocateOnePlace).
struct ResultBuffer {
  Location location;
  std::span<std::byte> bytes;
};

// Where the memory that an agent shares with its ranks comes from. One owner thread.
class RankMemory {
 public:
  virtual ~RankMemory() = default;

  // Memory for tensors. kOutOfMemory names limit, what is used and the remedy. Buffers are aligned
  // to 64 bytes, zeroed, and backed by memory when this returns. `bytes`: BufferShape::total_bytes,
  // so that the table of lengths is part of the buffer.
  virtual Outcome<ContributionBuffer> AllocateContribution(RankConnectionId connection,
                                                           uint64_t bytes) = 0;
  // For a tensor of a node's only rank, which writes its contribution there and finds the result
  // there: its own pages. Otherwise as AllocateContribution. kClosed: the rank is gone.
  virtual Outcome<ResultBuffer> AllocateOnePlace(RankConnectionId connection, uint64_t bytes) = 0;
  // For tensors that the ranks sum: where every rank's contribution lies, until DropTensorMemory,
  // and that place in one rank's arena. The rank sets the pages aside. kOutOfMemory, kLimit.
  virtual Outcome<SharedPlace> PlanContribution(const BufferShape& shape, bool in_place) = 0;
  virtual Outcome<Location> PlaceContribution(RankConnectionId connection,
                                              const SharedPlace& place) = 0;
  // Until DropTensorMemory. `bytes`: as for contributions. The agent writes the table of each round
  // whose parts may not be full before it publishes the round; ranks look there for the parts that
  // they get, unless all ranks give the same single part and theirs was full.
  virtual Outcome<ResultBuffer> AllocateResult(uint64_t bytes) = 0;
  // Results and places go, for other ranks' tensors: whoever was told of any is gone, and released.
  virtual void DropTensorMemory() = 0;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_RANK_MEMORY_H_
