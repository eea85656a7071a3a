// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SCHEDULE_SLICE_QUEUE_H_
#define TALWEG_LIBS_SCHEDULE_SLICE_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "libs/base/ids.h"
#include "libs/base/mutation.h"

namespace talweg::schedule {

// One slice that is ready to leave.
struct QueuedSlice {
  AggregatorIndex owner;
  int32_t priority = 0;  // Larger leaves first.
  uint64_t order = 0;    // Of readiness, among equal priorities: smaller leaves first.
  TensorKey tensor;
  SliceIndex slice;
  uint32_t cost_bytes = 0;  // What it counts against its owner's credit while it is in flight.

  friend bool operator==(const QueuedSlice&, const QueuedSlice&) = default;
};

// Which slice leaves next: the most urgent of those whose owner has credit. Urgent is what has the
// larger priority, then what was ready earlier, then the lower slice. A slice that was taken is
// not called back; a more urgent one overtakes whatever still waits.
//
// An owner has credit while nothing of its is in flight, or while what is in flight and the slice
// together stay within `credit_bytes`: a slice larger than the credit still leaves, alone.
//
// Push and Take cost O(log slices + owners). One owner thread; no clock, no I/O.
class SliceQueue {
 public:
  // Lets slices to `owner` leave, with nothing in flight. Slices may have been pushed before.
  void Open(AggregatorIndex owner, uint64_t credit_bytes);
  // Nothing leaves to `owner` any more; its waiting slices are dropped, its credit forgotten.
  void Close(AggregatorIndex owner);
  // As if new.
  void Clear();

  void Push(const QueuedSlice& slice);

  // Takes the most urgent slice that may leave, and charges its owner. `wanted` decides whether a
  // slice is still worth it: one that is not is dropped and costs nothing.
  template <typename Wanted>
  std::optional<QueuedSlice> Take(Wanted wanted) {
    while (Lane* lane = MostUrgent()) {
      const QueuedSlice slice = PopFrom(*lane);
      if (!wanted(slice)) continue;
      lane->in_flight_bytes += TALWEG_MUTATION(credit_not_charged, slice.cost_bytes, 0u);
      return slice;
    }
    return std::nullopt;
  }
  std::optional<QueuedSlice> Take() {
    return Take([](const QueuedSlice&) { return true; });
  }

  // `bytes` of what was sent to `owner` have arrived. More than was in flight counts as all of it:
  // the figure comes from a peer.
  void ReturnCredit(AggregatorIndex owner, uint64_t bytes);

  uint64_t InFlightBytes(AggregatorIndex owner) const;
  uint64_t CreditBytes(AggregatorIndex owner) const;
  size_t waiting_count() const { return waiting_count_; }
  size_t WaitingCount(AggregatorIndex owner) const;

 private:
  struct Lane {
    bool open = false;
    uint64_t credit_bytes = 0;
    uint64_t in_flight_bytes = 0;
    std::vector<QueuedSlice> heap;  // The most urgent in front.
  };

  Lane* MostUrgent();
  QueuedSlice PopFrom(Lane& lane);

  std::map<AggregatorIndex, Lane> lanes_;
  size_t waiting_count_ = 0;
};

}  // namespace talweg::schedule

#endif  // TALWEG_LIBS_SCHEDULE_SLICE_QUEUE_H_
