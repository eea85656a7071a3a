// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SCHEDULE_SLICE_QUEUE_H_
#define TALWEG_LIBS_SCHEDULE_SLICE_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "libs/base/ids.h"
#include "libs/schedule/send_window.h"

namespace talweg::schedule {

// One slice that is ready to leave.
struct QueuedSlice {
  AggregatorIndex owner;
  int32_t priority = 0;  // Larger leaves first.
  uint64_t order = 0;    // When it was ready; among equal priorities, smaller leaves first.
  // How far into its owner's part of the tensor the slice lies, as a fraction of kWhole. Slices of
  // one tensor leave in this order, so that all owners, and the links to them, always have work.
  uint32_t position = 0;
  TensorKey tensor;
  Round round;
  SliceIndex slice;
  uint32_t cost_bytes = 0;  // How much of its owner's credit it takes while in flight.
  // It takes that much at most: it is encoded first. Depart says how much it takes.
  bool is_bound = false;

  static constexpr uint32_t kWhole = 1 << 16;

  friend bool operator==(const QueuedSlice&, const QueuedSlice&) = default;
};

// How slices reach an owner.
enum class Reach : uint8_t {
  kLink = 1,    // Over this host's link.
  kMemory = 2,  // On this host: it neither loads the link nor tells its speed.
};

// Decides which slice leaves next: the most urgent one whose owner has credit. A slice is more
// urgent if its priority is larger; then if it was ready earlier; then if it lies nearer to the
// beginning of its owner's part; then if its index is lower. A more urgent slice overtakes all that
// still wait. A slice that was taken is not called back.
//
// An owner has credit while the bytes in flight and the slice together stay within its grant. It
// also has credit while nothing is in flight except what the owner may keep back, so that a slice
// larger than the grant still leaves, alone. The same rule holds for all owners over the link
// together and the SendWindow. Bytes to an owner with an unbounded grant (UINT64_MAX) do not count.
//
// The most urgent slice waits for the window, and less urgent ones wait with it, so that all
// owners' parts of a tensor advance alike. Slices that do not load the link do not wait: the owner
// on this host sums what the others have sent it, however full this host's link is.
//
// Push and Take cost O(log slices + owners). One owner thread; no clock, no I/O.
class SliceQueue {
 public:
  // Lets slices to `owner` leave, with nothing in flight. Slices may have been pushed before.
  void Open(AggregatorIndex owner, uint64_t credit_bytes, Reach reach = Reach::kLink);
  // Lets nothing leave to `owner` any more. Drops its waiting slices and forgets its credit.
  void Close(AggregatorIndex owner);
  // Resets the queue, but keeps what is known of the link's speed.
  void Clear();

  void Push(const QueuedSlice& slice);

  // Takes the most urgent slice that may leave, and charges its owner. `wanted` says whether a
  // slice is still needed. One that is not is dropped and costs nothing.
  template <typename Wanted>
  std::optional<QueuedSlice> Take(int64_t now_ns, Wanted wanted) {
    while (Lane* lane = MostUrgent()) {
      const QueuedSlice slice = PopFrom(*lane);
      if (!wanted(slice)) continue;
      slice.is_bound ? Reserve(*lane, slice.cost_bytes) : Charge(*lane, slice.cost_bytes, now_ns);
      return slice;
    }
    return std::nullopt;
  }
  std::optional<QueuedSlice> Take(int64_t now_ns) {
    return Take(now_ns, [](const QueuedSlice&) { return true; });
  }

  // A slice that was taken with the bound `cost_bytes` leaves now, and takes `bytes`; 0: it does
  // not leave.
  void Depart(AggregatorIndex owner, uint64_t cost_bytes, uint64_t bytes, int64_t now_ns);

  // `bytes` of those sent to `owner` have arrived. The figure comes from a peer: more than was in
  // flight counts as all of it.
  void ReturnCredit(AggregatorIndex owner, uint64_t bytes, int64_t now_ns);

  uint64_t InFlightBytes(AggregatorIndex owner) const;
  uint64_t CreditBytes(AggregatorIndex owner) const;
  // How many bytes may be in flight over the link, to all owners together.
  uint64_t WindowBytes() const { return window_.Bytes(); }
  // The link's speed, and the round-trip time to owners. 0: not known.
  uint64_t LinkBytesPerMs() const { return window_.BytesPerMs(); }
  int64_t RoundTripNs() const { return window_.RoundTripNs(); }
  size_t waiting_count() const { return waiting_count_; }
  size_t WaitingCount(AggregatorIndex owner) const;

 private:
  struct Lane {
    bool open = false;
    bool in_window = false;  // Over the link, with bounded credit.
    uint64_t credit_bytes = 0;
    uint64_t in_flight_bytes = 0;
    uint64_t reserved_bytes = 0;  // A part of these, for slices that have not left.
    SendWindow::Way way;
    std::vector<QueuedSlice> heap;  // The most urgent slice is in front.
  };

  Lane* MostUrgent();
  // Whether the slice fits the window.
  bool HasRoom(const QueuedSlice& slice) const;
  void Charge(Lane& lane, uint64_t bytes, int64_t now_ns);
  void Reserve(Lane& lane, uint64_t bytes);
  void Unreserve(Lane& lane, uint64_t bytes);
  void Forget(Lane& lane);
  QueuedSlice PopFrom(Lane& lane);

  std::map<AggregatorIndex, Lane> lanes_;
  size_t waiting_count_ = 0;
  SendWindow window_;
  uint64_t reserved_bytes_ = 0;  // That will be in the window.
};

}  // namespace talweg::schedule

#endif  // TALWEG_LIBS_SCHEDULE_SLICE_QUEUE_H_
