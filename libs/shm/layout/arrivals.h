// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_LAYOUT_ARRIVALS_H_
#define TALWEG_LIBS_SHM_LAYOUT_ARRIVALS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libs/base/bytes.h"

// Which bytes of a round's result have arrived, for ranks that copy them while the rest is on its
// way (docs/shared_memory.md, "Taking what has come"). It lies in the agent's result arena, so that
// ranks can only read it:
//
//   0    ArrivalsLine
//   64   Arrival[capacity]
namespace talweg::shm {

// Smaller tensors gain nothing.
inline constexpr uint64_t kArrivalsTensorBytesMin = kMiB;

struct alignas(64) ArrivalsLine {
  std::atomic<uint64_t> round;  // Written after a `count` of 0. 0: no round.
  std::atomic<uint64_t> count;  // Arrivals of that round, with release.
  std::atomic<uint64_t> bytes;  // The bytes of all these arrivals; written before `count`.
  uint64_t reserved[5];
};
static_assert(sizeof(ArrivalsLine) == 64 && std::atomic<uint64_t>::is_always_lock_free);

// Bytes of the result that have arrived. Bytes that a new view discards arrive again, and are told
// again. A result of which each byte was told exactly once has not changed since.
struct Arrival {
  std::atomic<uint64_t> offset_bytes;
  std::atomic<uint64_t> length_bytes;
};
static_assert(sizeof(Arrival) == 16);

// A log of smaller slices would be full before the result is there.
inline constexpr uint64_t kArrivalBytesMin = 64 * kKiB;

// How many arrivals there is room for: one for each slice. Further arrivals of a round are not
// told; a full log says nothing about the whole.
constexpr uint64_t ArrivalsCapacity(uint64_t tensor_bytes) {
  constexpr uint64_t kMore = 256;  // For each owner's last slice, which is short.
  return tensor_bytes < kArrivalsTensorBytesMin ? 0 : tensor_bytes / kArrivalBytesMin + kMore;
}
// 0: the tensor has no log.
constexpr uint64_t ArrivalsBytes(uint64_t tensor_bytes) {
  const uint64_t capacity = ArrivalsCapacity(tensor_bytes);
  return capacity == 0 ? 0 : sizeof(ArrivalsLine) + capacity * sizeof(Arrival);
}

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_LAYOUT_ARRIVALS_H_
