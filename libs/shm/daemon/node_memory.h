// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DAEMON_NODE_MEMORY_H_
#define TALWEG_LIBS_SHM_DAEMON_NODE_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "libs/shm/daemon/arena.h"
#include "libs/shm/daemon/connection.h"
#include "libs/shm/daemon/outcome.h"
#include "libs/shm/daemon/rank_memory.h"
#include "libs/shm/daemon/rank_server.h"
#include "libs/shm/daemon/segment.h"
#include "libs/shm/daemon/shared_arena.h"
#include "libs/shm/layout/parts.h"

namespace talweg::shm {

// The memory that an agent shares with its ranks: the node's results, and the arenas of each rank.
// It numbers all segments of the node. One owner thread.
class NodeMemory {
 public:
  explicit NodeMemory(const RankServerConfig& config);

  // The rank has got its local rank: from now on it may have memory.
  void MakeArenas(Connection& connection);

  // As in RankMemory. A connection that is null, or has no arenas, is gone.
  Outcome<ContributionBuffer> AllocateContribution(Connection* connection, uint64_t bytes);
  Outcome<ResultBuffer> AllocateOnePlace(Connection* connection, uint64_t bytes);
  Outcome<ResultBuffer> AllocateResult(uint64_t bytes);
  Outcome<SharedPlace> Plan(const BufferShape& shape, bool in_place) {
    return plan_.Place(shape, in_place);
  }
  // `*is_new`: the part did not exist before.
  Outcome<Location> Place(Connection& connection, const SharedPlace& place, bool* is_new);
  // Drops results and places.
  void Clear();

  // Returns a segment that the rank may be told of, or null.
  const Segment* FindSegment(Connection& connection, uint32_t id, SegmentKind* kind);
  // Notes where the rank's contribution lies in this process, if it has one in host memory.
  void FindContribution(Connection& connection, TensorOfRank& tensor);

 private:
  const uint32_t local_rank_count_;
  const uint64_t contribution_bytes_max_;
  const uint64_t segment_bytes_min_;
  uint32_t next_segment_ = 1;
  ArenaBudget result_budget_;
  Arena results_;
  SharedPlan plan_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_NODE_MEMORY_H_
