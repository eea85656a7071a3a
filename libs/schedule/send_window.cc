// SPDX-License-Identifier: Apache-2.0
#include "libs/schedule/send_window.h"

#include <algorithm>
#include <utility>

#include "libs/base/bytes.h"
#include "libs/wire/frames.h"

namespace talweg::schedule {
namespace {

constexpr uint64_t kFullMs = 10;
constexpr int64_t kFullNs = kFullMs * 1'000'000;
constexpr uint64_t kFirstBytes = kMiB;
constexpr int64_t kPeriodNs = 500'000'000;
// A trip counts for this time or for this many trips, whichever is longer, so that measuring costs
// no more than a hundredth.
constexpr int64_t kTripPeriodNs = 5'000'000'000;
constexpr int64_t kTripPeriodTrips = 100;
// For this long into a period, a pause of the trainer may tell how long the way is. After that the
// window makes a pause.
constexpr int64_t kPatienceNs = 1'000'000'000;
// After this many round trips that are not a quarter faster, the link counts as full.
constexpr int kStillMax = 3;
// The figures come from peers. No real link exceeds these bounds, and they keep sums within their
// bits.
constexpr uint64_t kBytesPerMsMax = kGiB;
constexpr int64_t kTripNsMax = 10'000'000'000;

constexpr uint64_t kNsPerMs = 1'000'000;
constexpr uint64_t kNsPerUs = 1'000;
constexpr uint64_t kUsPerMs = 1'000;

}  // namespace

uint64_t SendWindow::BytesPerMs() const { return std::max(present_.fastest, before_.fastest); }

SendWindow::Way::Trip SendWindow::MeanTrip() const {
  const uint64_t bytes = present_.bytes + before_.bytes;
  if (bytes == 0) return {};
  const uint64_t us = (present_.byte_us_on_trip + before_.byte_us_on_trip) / bytes;
  const uint64_t kib = (present_.byte_kib_in_flight + before_.byte_kib_in_flight) / bytes;
  return {.ns = static_cast<int64_t>(us * kNsPerUs), .in_flight_bytes = kib * kKiB};
}

// What keeps each way busy while receipts come slice by slice.
uint64_t SendWindow::SlicesBytes() const { return MeasuringBytes() + largest_bytes_; }

// One slice less: a slice that waits for all of these still leaves one to add.
uint64_t SendWindow::MeasuringBytes() const {
  return (1 + way_count_) * largest_bytes_ + way_count_ * wire::kKeptCreditBytes;
}

uint64_t SendWindow::Bytes() const {
  if (measuring_) return MeasuringBytes();
  const uint64_t speed = BytesPerMs();
  if (speed == 0) return kFirstBytes + SlicesBytes();
  const Way::Trip trip = MeanTrip();
  const uint64_t trip_us = static_cast<uint64_t>(trip.ns) / kNsPerUs * (growing_ ? 2 : 1);
  // The trip includes the bytes that were in flight on it, queued or not, so the slices add that
  // much less. They always add one slice: otherwise the window might not grow by a whole slice.
  const uint64_t more_bytes = SlicesBytes() - std::min(trip.in_flight_bytes, MeasuringBytes());
  return speed * (kFullMs * kUsPerMs + trip_us) / kUsPerMs + more_bytes;
}

void SendWindow::Open(Way& way) {
  Close(way);
  way.open_ = true;
  ++way_count_;
}

void SendWindow::Close(Way& way) {
  if (!way.open_) return;
  in_flight_bytes_ -= way.sent_bytes_ - way.received_bytes_;
  --way_count_;
  way = {};
}

void SendWindow::OnSent(Way& way, uint64_t bytes, int64_t now_ns) {
  if (bytes == 0) return;
  largest_bytes_ = std::max(largest_bytes_, bytes);
  way.sent_bytes_ += bytes;
  in_flight_bytes_ += bytes;
  way.under_way_.push_back(
      {.end_bytes = way.sent_bytes_,
       .received_bytes = received_bytes_,
       .in_flight_bytes = in_flight_bytes_,
       .at_ns = now_ns,
       .tells_way = in_flight_bytes_ <= MeasuringBytes(),
       .fills_window = growing_ && in_flight_bytes_ + largest_bytes_ > Bytes()});
}

void SendWindow::OnReceived(Way& way, uint64_t bytes, int64_t now_ns) {
  // The figure comes from a peer: more than was sent counts as all of it.
  bytes = std::min(bytes, way.sent_bytes_ - way.received_bytes_);
  way.received_bytes_ += bytes;
  in_flight_bytes_ -= bytes;
  received_bytes_ += bytes;
  std::optional<Way::Sent> last;
  while (!way.under_way_.empty() && way.under_way_.front().end_bytes <= way.received_bytes_) {
    last = way.under_way_.front();
    way.under_way_.pop_front();
  }
  if (!last || now_ns <= last->at_ns) return;
  NoteReceipt(
      {.at_ns = now_ns, .received_bytes = received_bytes_, .trip_ns = now_ns - last->at_ns});
  if (now_ns - period_since_ns_ >= kPeriodNs) {
    period_since_ns_ = now_ns;
    before_ = std::exchange(present_, Period{});
  }
  OnTrip(way, *last, now_ns);
  const Way::Trip& trip = !way.least_before_ || way.least_->ns <= way.least_before_->ns
                              ? *way.least_
                              : *way.least_before_;
  present_.bytes += bytes;
  present_.byte_us_on_trip += bytes * (static_cast<uint64_t>(trip.ns) / kNsPerUs);
  present_.byte_kib_in_flight += bytes * (trip.in_flight_bytes / kKiB);
  OnSpeed(*last, now_ns);
}

void SendWindow::OnTrip(Way& way, const Way::Sent& sent, int64_t now_ns) {
  const Way::Trip trip = {.ns = std::min(now_ns - sent.at_ns, kTripNsMax),
                          .in_flight_bytes = sent.in_flight_bytes};
  if (!way.least_) way.period_since_ns_ = now_ns;
  const int64_t elapsed_ns = now_ns - way.period_since_ns_;
  // A known trip stays until another is told, because waiting does not make trips shorter while the
  // link is full.
  if (elapsed_ns >= std::max(kTripPeriodNs, kTripPeriodTrips * trip.ns) && way.is_told_) {
    way.period_since_ns_ = now_ns;
    way.least_before_ = std::exchange(way.least_, std::nullopt);
    way.is_told_ = false;
  }
  if (!way.least_ || trip.ns < way.least_->ns) way.least_ = trip;
  if (sent.tells_way) {
    way.is_told_ = true;
    measuring_ = false;
    measured_at_ns_ = now_ns;
  } else if (!way.is_told_ && elapsed_ns >= kPatienceNs && sent.at_ns > measured_at_ns_) {
    measuring_ = true;
  }
}

void SendWindow::NoteReceipt(const Receipt& receipt) {
  while (last_receipts_.size() > 1 && receipt.at_ns - last_receipts_[1].at_ns >= kFullNs) {
    last_receipts_.pop_front();
  }
  last_receipts_.push_back(receipt);
  while (!late_receipts_.empty() && late_receipts_.back().trip_ns <= receipt.trip_ns) {
    late_receipts_.pop_back();
  }
  while (!late_receipts_.empty() && receipt.at_ns - late_receipts_.front().at_ns > kTripNsMax) {
    late_receipts_.pop_front();
  }
  late_receipts_.push_back(receipt);
}

int64_t SendWindow::LongestTripSince(uint64_t received_bytes) const {
  return std::partition_point(late_receipts_.begin(), late_receipts_.end(),
                              [received_bytes](const Receipt& receipt) {
                                return receipt.received_bytes <= received_bytes;
                              })
      ->trip_ns;
}

uint64_t SendWindow::SpeedOver(const Way::Sent& sent, int64_t now_ns) const {
  uint64_t before_bytes = sent.received_bytes;
  int64_t elapsed_ns = now_ns - sent.at_ns;
  if (elapsed_ns < kFullNs) {
    const Receipt& first = last_receipts_.front();
    const int64_t since_first_ns = now_ns - first.at_ns;
    before_bytes = since_first_ns < kFullNs ? 0 : first.received_bytes;
    // Exact to one slice, unless the link has rested since.
    elapsed_ns = since_first_ns < 2 * kFullNs ? std::max(since_first_ns, kFullNs) : kFullNs;
  }
  elapsed_ns = std::max(elapsed_ns, LongestTripSince(before_bytes));
  return (received_bytes_ - before_bytes) * kNsPerMs / static_cast<uint64_t>(elapsed_ns);
}

void SendWindow::OnSpeed(const Way::Sent& sent, int64_t now_ns) {
  const uint64_t sample = SpeedOver(sent, now_ns);
  present_.fastest = std::max(present_.fastest, std::clamp(sample, uint64_t{1}, kBytesPerMsMax));
  // Only a slice that filled the window shows that a larger window would bring nothing.
  if (!sent.fills_window || sent.at_ns < round_since_ns_ ||
      now_ns - round_since_ns_ < RoundTripNs()) {
    return;
  }
  round_since_ns_ = now_ns;
  if (BytesPerMs() >= grown_bytes_per_ms_ + grown_bytes_per_ms_ / 4) {
    grown_bytes_per_ms_ = BytesPerMs();
    still_count_ = 0;
  } else if (++still_count_ == kStillMax) {
    growing_ = false;
  }
}

}  // namespace talweg::schedule
