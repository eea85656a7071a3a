// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DAEMON_ARENA_H_
#define TALWEG_LIBS_SHM_DAEMON_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "libs/shm/daemon/growing_segment.h"
#include "libs/shm/daemon/outcome.h"
#include "libs/shm/daemon/segment.h"
#include "libs/shm/daemon/unbacked_memory.h"
#include "libs/shm/layout/messages.h"

namespace talweg::shm {

// What the buffers of one owner may take together, over all its arenas.
struct ArenaBudget {
  uint64_t bytes_max = 0;
  uint64_t used = 0;
};

// Buffers for tensors, cut one after the other from a chain of segments, and all given back at
// once. One owner thread.
class Arena {
 public:
  struct Config {
    SegmentUse use = SegmentUse::kResult;
    uint64_t segment_bytes_min = 0;
    std::string owner;  // For texts: "contributions of local rank 1".
  };
  struct Buffer {
    Location location;
    std::span<std::byte> bytes;  // Not writable if the segments are contributions.
    UnbackedMemory unbacked;     // What the kernel must give before the buffer is used.
  };
  struct Part {
    uint32_t id = 0;
    std::shared_ptr<GrowingSegment> place;
    uint64_t used = 0;

    const Segment& segment() const { return place->segment(); }
  };

  // Takes segment ids from *next_segment. `next_segment` and `budget` outlive the arena.
  Arena(Config config, ArenaBudget* budget, uint32_t* next_segment);

  // The buffer is aligned to 64 bytes, or has its own pages (kOnePlace); it is zeroed. Asks the
  // kernel for no pages. kOutOfMemory or kLimit.
  Outcome<Buffer> Allocate(uint64_t bytes);

  // Returns nullptr if the arena has no such segment. Valid until the next Allocate or Clear.
  Part* Find(uint32_t segment);

  // Gives all buffers back.
  void Clear();

 private:
  Config config_;
  ArenaBudget* budget_;
  uint32_t* next_segment_;
  uint64_t used_ = 0;  // How much of the budget this arena uses.
  std::vector<Part> parts_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_ARENA_H_
