// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DAEMON_SEGMENT_H_
#define TALWEG_LIBS_SHM_DAEMON_SEGMENT_H_

#include <cstdint>

#include "libs/base/descriptor.h"
#include "libs/shm/daemon/outcome.h"
#include "libs/shm/mapping.h"

namespace talweg::shm {

enum class SegmentUse {
  kControl,             // Both sides write.
  kContribution,        // The rank writes, this process maps it read only.
  kSharedContribution,  // Likewise; other ranks map it, read only after SealAgainstWriters.
  kOnePlace,            // The rank and this process write, by turns; nobody else maps it.
  kResult,  // This process writes; nobody else can ever map it writable (F_SEAL_FUTURE_WRITE).
};

// A piece of anonymous memory that other processes can map: no name, gone with its last holder,
// sealed against shrinking, growing and further sealing.
struct Segment {
  uint64_t bytes = 0;
  Descriptor fd;
  Mapping mapping;
};

// kOutOfMemory or kLimit, with the kernel's reason. `bytes` > 0.
Outcome<Segment> CreateSegment(SegmentUse use, uint64_t bytes);

// From here on nobody can map the segment writable any more; its rank has done so. A rank that has
// sealed its own segment already harms itself only.
void SealAgainstWriters(const Segment& segment);

// Has the kernel set pages aside, zeroed, so that a later write cannot fail. kOutOfMemory if it has
// none. Takes the time that this takes.
Outcome<bool> BackWithMemory(const Segment& segment, uint64_t offset, uint64_t bytes);

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_SEGMENT_H_
