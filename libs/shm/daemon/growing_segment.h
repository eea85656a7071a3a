// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DAEMON_GROWING_SEGMENT_H_
#define TALWEG_LIBS_SHM_DAEMON_GROWING_SEGMENT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "libs/shm/daemon/outcome.h"
#include "libs/shm/daemon/segment.h"
#include "libs/shm/daemon/unbacked_memory.h"

namespace talweg::shm {

// A segment that gets its memory from the front to the back, as buffers are planned in it.
//
// The arena's owner plans. Another thread may back. It keeps the segment mapped while it works,
// also when the owner has let go of it, and then stops soon.
class GrowingSegment final : public BackedLater,
                             public std::enable_shared_from_this<GrowingSegment> {
 public:
  // `owner` is for texts: "contributions of local rank 1".
  GrowingSegment(SegmentUse use, Segment segment, std::string owner)
      : use_(use), segment_(std::move(segment)), owner_(std::move(owner)) {}

  const Segment& segment() const { return segment_; }

  // The owner: a buffer lies at [begin, end), after all others. Returns what it lacks of memory.
  UnbackedMemory Plan(uint64_t begin, uint64_t end);
  // Any thread: all buffers up to here have memory, except for those that got none.
  uint64_t backed() const { return backed_.load(std::memory_order_acquire); }

  // BackedLater
  Outcome<bool> Back(uint64_t begin, uint64_t end) override;
  void BackAhead() override;

 private:
  // Ends early if the owner has let go of the segment.
  Outcome<bool> BackInPieces(uint64_t begin, uint64_t end);

  const SegmentUse use_;
  const Segment segment_;
  const std::string owner_;
  std::atomic<uint64_t> planned_{0};
  std::atomic<uint64_t> backed_{0};
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_GROWING_SEGMENT_H_
