// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DAEMON_SHARED_ARENA_H_
#define TALWEG_LIBS_SHM_DAEMON_SHARED_ARENA_H_

#include <cstdint>
#include <vector>

#include "libs/shm/daemon/outcome.h"
#include "libs/shm/daemon/segment.h"
#include "libs/shm/layout/messages.h"
#include "libs/shm/layout/parts.h"

// Contributions that the ranks of a node read from each other (docs/shared_memory.md, "Ranks that
// sum"). Every rank has its own arena, and all arenas are cut alike: a rank that knows where a
// tensor lies in its own arena knows where it lies in all.
namespace talweg::shm {

// Where a tensor lies in every rank's arena, cut as RankSumShape says. Tensors that are summed in
// place have separate parts.
struct SharedPlace {
  uint32_t part = 0;
  uint64_t part_bytes = 0;
  uint64_t offset = 0;
  bool in_place = false;
  friend bool operator==(const SharedPlace&, const SharedPlace&) = default;
};

// Cuts the arenas: a chain of parts, each as large as all before it. One owner thread.
class SharedPlan {
 public:
  SharedPlan(uint32_t ranks, uint64_t bytes_max, uint64_t part_bytes_min)
      : ranks_(ranks), bytes_max_(bytes_max), part_bytes_min_(part_bytes_min) {}

  // kOutOfMemory, with the figures.
  Outcome<SharedPlace> Place(const BufferShape& shape, bool in_place);

  // Gives all places back.
  void Clear();

 private:
  struct Part {
    uint64_t bytes = 0;
    uint64_t used = 0;
    bool in_place = false;
  };

  const uint32_t ranks_;
  const uint64_t bytes_max_;  // For one rank.
  const uint64_t part_bytes_min_;
  uint64_t used_ = 0;
  std::vector<Part> parts_;
};

// One rank's arena. One owner thread.
class SharedArena {
 public:
  struct Part {
    uint32_t id = 0;  // 0: it does not exist yet.
    Segment segment;
    bool in_place = false;  // The other ranks write it, too.
  };

  // Makes the part if it does not exist. The rank has the kernel back its pages. Takes segment ids
  // from *next_segment.
  Outcome<Location> At(const SharedPlace& place, uint32_t* next_segment);
  // These return nullptr if there is none.
  const Part* FindPart(uint32_t part) const;
  const Part* FindSegment(uint32_t id) const;

 private:
  std::vector<Part> parts_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_SHARED_ARENA_H_
