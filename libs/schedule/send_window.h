// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SCHEDULE_SEND_WINDOW_H_
#define TALWEG_LIBS_SCHEDULE_SEND_WINDOW_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace talweg::schedule {

// Decides how much may be on its way to all owners together, so that the link is always full and no
// fuller. Bytes that wait in sockets cannot be overtaken any more, and leave in an order that is
// not ours. Owners grant as much as the fastest network needs; over a slow network that many bytes
// would hold up an urgent slice for tenths of a second.
//
// The window is the link's speed times (the round-trip time plus kFullMs), plus a few slices. The
// slices are needed because receipts come slice by slice and may wait for results before them
// (docs/protocol.md, section 7). Speed and round trip are estimated as in BBR (Cardwell et al.,
// "BBR: congestion-based congestion control", 2016), from the receipts that owners send as soon as
// a slice has arrived:
//
// - The speed is the bytes that all owners received between a slice's departure and its receipt,
//   divided by that time. The window keeps the fastest of the last period and this one. Two effects
//   would look like a faster link:
//   - Shapers let some milliseconds of a link that has rested pass at once. Therefore no time is
//     shorter than kFullMs: bytes that were received before the slice left then count as well.
//   - Late receipts come together. This process had to wait for a CPU; or the slices waited at an
//     owner whose link is full, while one to another owner came at once. Therefore no time is
//     shorter than the longest time that any of these slices was under way.
// - The round trip is the shortest time under way of the last period and this one. While the
//   link is full, a slice waits for those before it, and no time shows how long the way is.
//   Therefore now and then only the few slices may be on their way, until one of them has arrived.
//
// A window that is too small limits what it measures. It grows nevertheless, because it is always
// larger than what was measured: about twice as large, until twice as much brings no more.
//
// Pure. Receipts from an owner come in the order in which the slices left.
class SendWindow {
 public:
  // What is on its way to one owner.
  class Way {
   private:
    friend class SendWindow;
    struct Sent {
      uint64_t end_bytes = 0;        // All bytes sent this way, up to this slice.
      uint64_t received_bytes = 0;   // By all owners, when the slice left.
      uint64_t in_flight_bytes = 0;  // To all owners, including this slice.
      int64_t at_ns = 0;
      bool tells_way = false;
      bool fills_window = false;
    };
    // From a slice's departure to its receipt.
    struct Trip {
      int64_t ns = 0;
      uint64_t in_flight_bytes = 0;  // When the slice left, including it.
    };
    bool open_ = false;
    uint64_t sent_bytes_ = 0;
    uint64_t received_bytes_ = 0;
    std::deque<Sent> under_way_;
    // The shortest trip of the present period and of the one before.
    std::optional<Trip> least_;
    std::optional<Trip> least_before_;
    int64_t period_since_ns_ = 0;
    bool is_told_ = false;  // In the present period.
  };

  void Open(Way& way);
  // Nothing is on its way any more. Forgets what is known of the way.
  void Close(Way& way);
  size_t way_count() const { return way_count_; }

  uint64_t Bytes() const;
  uint64_t InFlightBytes() const { return in_flight_bytes_; }

  // The highest speed of the link that is kept. 0: not known yet.
  uint64_t BytesPerMs() const;
  // How long a slice to its owner, and the receipt back, take when little is before them: the mean
  // over the bytes sent. 0: not known yet.
  int64_t RoundTripNs() const { return MeanTrip().ns; }

  void OnSent(Way& way, uint64_t bytes, int64_t now_ns);
  void OnReceived(Way& way, uint64_t bytes, int64_t now_ns);

 private:
  // What receipts have told in one period.
  struct Period {
    uint64_t fastest = 0;  // Bytes a millisecond.
    // Sums over the received bytes, with the shortest trip of each one's way.
    uint64_t bytes = 0;
    uint64_t byte_us_on_trip = 0;
    uint64_t byte_kib_in_flight = 0;
  };

  struct Receipt {
    int64_t at_ns = 0;
    uint64_t received_bytes = 0;  // By all owners, with it.
    int64_t trip_ns = 0;
  };

  // The mean of the ways' trips, each weighted by the bytes that came over it.
  Way::Trip MeanTrip() const;
  uint64_t SlicesBytes() const;
  uint64_t MeasuringBytes() const;
  void OnTrip(Way& way, const Way::Sent& sent, int64_t now_ns);
  void OnSpeed(const Way::Sent& sent, int64_t now_ns);
  // Bytes a millisecond, while the slice was under way.
  uint64_t SpeedOver(const Way::Sent& sent, int64_t now_ns) const;
  void NoteReceipt(const Receipt& receipt);
  // The longest trip that a receipt has told of since `received_bytes` were received in all.
  int64_t LongestTripSince(uint64_t received_bytes) const;

  size_t way_count_ = 0;
  uint64_t largest_bytes_ = 0;
  uint64_t in_flight_bytes_ = 0;
  uint64_t received_bytes_ = 0;
  Period present_;
  Period before_;
  int64_t period_since_ns_ = 0;
  // The last receipt that is at least kFullMs old, and all later ones.
  std::deque<Receipt> last_receipts_;
  // Each had a longer trip than all later ones; from the last kTripNsMax.
  std::deque<Receipt> late_receipts_;
  // Whether a window twice as large may bring more; the speed when it last grew; for how many round
  // trips it has not grown.
  bool growing_ = true;
  uint64_t grown_bytes_per_ms_ = 0;
  int still_count_ = 0;
  int64_t round_since_ns_ = 0;
  // Whether only the few slices may be on their way; when one last told how long the way is.
  bool measuring_ = false;
  int64_t measured_at_ns_ = 0;
};

}  // namespace talweg::schedule

#endif  // TALWEG_LIBS_SCHEDULE_SEND_WINDOW_H_
