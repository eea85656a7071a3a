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
  kContribution,        // The rank writes; this process maps it read only.
  kSharedContribution,  // The same; other ranks map it, read only after SealAgainstWriters.
  kOnePlace,            // The rank and this process write by turns; nobody else maps it.
  kResult,  // This process writes; nobody else can ever map it writable (F_SEAL_FUTURE_WRITE).
};

// Anonymous memory that other processes can map. It has no name, goes with its last holder, and is
// sealed against shrinking, growing and further sealing.
struct Segment {
  uint64_t bytes = 0;
  Descriptor fd;
  Mapping mapping;
};

// `bytes` > 0. kOutOfMemory or kLimit, with the kernel's reason.
Outcome<Segment> CreateSegment(SegmentUse use, uint64_t bytes);

// From now on nobody can map the segment writable; its rank has done so before. A rank that has
// already sealed its own segment harms only itself.
void SealAgainstWriters(const Segment& segment);

// Has the kernel allocate zeroed pages, so that a later write cannot fail, and map them here, so
// that it need not be asked again. Takes the time that the kernel needs. kOutOfMemory if it has no
// pages. Any thread.
Outcome<bool> BackWithMemory(SegmentUse use, const Segment& segment, uint64_t offset,
                             uint64_t bytes);

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_SEGMENT_H_
