// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/daemon/growing_segment.h"

#include <algorithm>

#include "libs/base/bytes.h"
#include "libs/shm/layout/control.h"

namespace talweg::shm {
namespace {

// Has the kernel back memory for many small buffers at a time.
constexpr uint64_t kBackBytes = 256 * kKiB;
// Buffers that are planned already get memory in the same call, up to here. The first of them
// waits for it.
constexpr uint64_t kTogetherBytes = 8 * kMiB;
// After each piece the thread sees whether the memory is still wanted.
constexpr uint64_t kPieceBytes = 64 * kMiB;
// So much memory is ready for the next buffers, if the segment's buffers take as much.
constexpr uint64_t kAheadBytes = 4 * kMiB;

}  // namespace

UnbackedMemory GrowingSegment::Plan(uint64_t begin, uint64_t end) {
  planned_.store(end, std::memory_order_relaxed);
  if (backed() >= end) return {};
  return {weak_from_this(), begin, end};
}

Outcome<bool> GrowingSegment::Back(uint64_t begin, uint64_t end) {
  // A buffer before this one may have got no memory. Its place stays empty.
  begin = std::max(begin, backed());
  if (end <= begin) return true;
  const uint64_t planned = planned_.load(std::memory_order_relaxed);
  uint64_t ahead = std::max({end, std::min(planned, end + kTogetherBytes), begin + kBackBytes});
  if (ahead - begin >= Mapping::kHugePageBytes / 2) {
    ahead = RoundUp(ahead, Mapping::kHugePageBytes);  // The next buffer uses the rest.
  }
  ahead = std::min(ahead, segment_.bytes);
  if (BackInPieces(begin, ahead).ok()) return true;
  // There may still be enough memory for this buffer alone.
  Outcome<bool> alone = BackInPieces(std::max(begin, backed()), end);
  if (alone.ok()) return true;
  return Failure{alone.failure().status, owner_ + ": " + alone.failure().text};
}

void GrowingSegment::BackAhead() {
  // A small model needs no more than what Back has rounded up.
  const uint64_t planned = planned_.load(std::memory_order_relaxed);
  const uint64_t reserve =
      std::min(planned, kAheadBytes) / Mapping::kHugePageBytes * Mapping::kHugePageBytes;
  const uint64_t end = std::min(RoundUp(planned + reserve, Mapping::kHugePageBytes),
                                segment_.bytes / Mapping::kHugePageBytes * Mapping::kHugePageBytes);
  const uint64_t begin = backed();
  if (reserve == 0 || end <= begin || end - begin < Mapping::kHugePageBytes) return;
  static_cast<void>(BackInPieces(begin, end));  // A failure is the next buffer's.
}

Outcome<bool> GrowingSegment::BackInPieces(uint64_t begin, uint64_t end) {
  while (begin < end) {
    if (weak_from_this().use_count() == 1) return true;  // Only the caller holds it any more.
    const uint64_t piece_end =
        std::min(end, begin / Mapping::kHugePageBytes * Mapping::kHugePageBytes + kPieceBytes);
    if (Outcome<bool> backed = BackWithMemory(use_, segment_, begin, piece_end - begin);
        !backed.ok()) {
      return backed;
    }
    backed_.store(piece_end, std::memory_order_release);
    begin = piece_end;
  }
  return true;
}

}  // namespace talweg::shm
