// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_RANK_MEMORY_H_
#define TALWEG_LIBS_SHM_CLIENT_RANK_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libs/shm/client/agent_link.h"
#include "libs/shm/client/client_identity.h"
#include "libs/shm/client/lock.h"
#include "libs/shm/client/pushed_rounds.h"
#include "libs/shm/client/rank_tensor.h"
#include "libs/shm/layout/messages.h"
#include "libs/shm/mapping.h"

namespace talweg::shm {

// Why something that the agent gives cannot be taken; kOk: it was taken.
struct Problem {
  RankStatus status = RankStatus::kOk;
  const char* text = nullptr;
};

// The memory that the agent has handed to this rank: the segments of its own tensors and, if the
// ranks sum, those of its neighbours' contributions. Everything stays mapped until the client is
// freed. Any thread may look for arenas. Call the other functions with the client's state mutex
// locked, except where a comment says otherwise.
class RankMemory {
 public:
  RankMemory(AgentLink& link, const ClientIdentity& identity, Mutex& state_mutex)
      : link_(link), identity_(identity), state_mutex_(state_mutex) {}
  RankMemory(const RankMemory&) = delete;
  RankMemory& operator=(const RankMemory&) = delete;
  ~RankMemory();

  // The thread that takes the Welcome calls it, alone. Returns false if there is no memory.
  bool Begin();

  // Maps the next of the descriptors that came.
  Problem AdoptSegment(const SegmentInfo& info);
  // Locks the state mutex itself.
  Problem AdoptPeer(const Peer& peer);

  // Makes room for one more segment, which Keep takes. Returns false if there is no memory.
  bool Reserve();
  void Keep(uint32_t id, SegmentKind kind, Mapping mapping);
  // Returns null if `location` does not lie in a segment of that kind.
  std::byte* Locate(const Location& location, SegmentKind kind, uint64_t bytes) const;
  // Tensors in part `part` of every rank's arena are summed in place: maps the neighbours' part
  // writable.
  void MapWritable(uint32_t part) { in_place_parts_ |= uint64_t{1} << part; }

  // Finds where the tensor lies in each rank's arena. Returns false if not all are known.
  // Lock-free.
  bool FindArenas(const RankTensor& tensor, std::byte** arenas) const;
  // What the other ranks say about the tensor; nothing if only the agent can tell about this rank's
  // open round.
  PushedRounds FindPushedRounds(const RankTensor& tensor) const;

 private:
  // A segment of another rank's contributions. `bytes` is written before `base`, with release.
  struct PeerPart {
    std::atomic<std::byte*> base{nullptr};
    uint64_t bytes = 0;
  };
  struct MappedSegment {
    uint32_t id = 0;
    SegmentKind kind = SegmentKind::kContribution;
    Mapping mapping;
  };

  AgentLink& link_;
  const ClientIdentity& identity_;
  Mutex& state_mutex_;
  MappedSegment* segments_ = nullptr;
  uint32_t segment_count_ = 0;
  PeerPart* peers_ = nullptr;    // By local rank, then by part.
  uint64_t in_place_parts_ = 0;  // Bit p: part p.
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_RANK_MEMORY_H_
