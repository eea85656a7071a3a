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

// The memory that the agent has handed to this rank: the segments of its own tensors, and where the
// ranks sum also those of its neighbours' contributions. Everything stays mapped until the client
// is freed. Any thread may look for arenas; the rest is called with the client's state mutex
// locked, but for what says otherwise.
class RankMemory {
 public:
  RankMemory(AgentLink& link, const ClientIdentity& identity, Mutex& state_mutex)
      : link_(link), identity_(identity), state_mutex_(state_mutex) {}
  RankMemory(const RankMemory&) = delete;
  RankMemory& operator=(const RankMemory&) = delete;
  ~RankMemory();

  // With the Welcome, by its thread alone. False: no memory.
  bool Begin();

  // Maps the next of the descriptors that came. null, or what is wrong.
  const char* AdoptSegment(const SegmentInfo& info);
  // Locks the state mutex.
  const char* AdoptPeer(const Peer& peer);

  // Room for one more; false: there is no memory. Keep then takes it.
  bool Reserve();
  void Keep(uint32_t id, SegmentKind kind, Mapping mapping);
  // Null: it does not lie in a segment of that kind.
  std::byte* Locate(const Location& location, SegmentKind kind, uint64_t bytes) const;
  // Part `part` of every rank is summed in place: neighbours' are mapped writable.
  void MapWritable(uint32_t part) { in_place_parts_ |= uint64_t{1} << part; }

  // Where the tensor lies in each rank's arena; false: not all are known. Lock-free.
  bool FindArenas(const RankTensor& tensor, std::byte** arenas) const;
  // What the others say of it; nothing where the agent alone can tell of this rank's open round.
  PushedRounds FindPushedRounds(const RankTensor& tensor) const;

 private:
  // A segment of another rank's contributions. `bytes` before `base`, with release.
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
  PeerPart* peers_ = nullptr;    // By local rank, then part.
  uint64_t in_place_parts_ = 0;  // Bit p: part p.
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_RANK_MEMORY_H_
