// SPDX-License-Identifier: Apache-2.0
#include "libs/schedule/send_window.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/bytes.h"
#include "libs/schedule/link_fixture.h"

namespace talweg::schedule {
namespace {

constexpr uint64_t kSliceBytes = 256 * kKiB;
constexpr uint64_t kKeptBackBytes = 128 * kKiB;
constexpr int64_t kMs = 1'000'000;

std::vector<int64_t> Owners(size_t count, int64_t round_trip_ms) {
  return std::vector<int64_t>(count, round_trip_ms * kMs + kMs / 10);
}

// Returns the part of the link that the credits let through.
double CreditShare(const LinkShape& shape) {
  const double bytes_per_ns = shape.gigabits_per_s / 8;
  const auto credit_bytes = static_cast<double>(shape.credit_bytes * shape.round_trips_ns.size());
  const auto trip_ns =
      static_cast<double>(shape.round_trips_ns[0]) + shape.slice_bytes / bytes_per_ns;
  return std::min(1.0, credit_bytes / trip_ns / bytes_per_ns);
}

TEST_CASE("SendWindow: it begins with little, and a slice for each way", "[schedule]") {
  SendWindow window;
  std::vector<SendWindow::Way> ways(4);
  window.Open(ways[0]);
  CHECK(window.Bytes() == kMiB + kKeptBackBytes);
  window.OnSent(ways[0], kSliceBytes, 5);
  CHECK(window.Bytes() == kMiB + kKeptBackBytes + 3 * kSliceBytes);
  window.OnReceived(ways[0], kSliceBytes / 2, 10);  // A part of a slice does not count as a sample.
  CHECK(window.BytesPerMs() == 0);
  window.OnReceived(ways[0], 0, 10);
  CHECK(window.Bytes() == kMiB + kKeptBackBytes + 3 * kSliceBytes);
  for (size_t i = 1; i < ways.size(); ++i) window.Open(ways[i]);
  CHECK(window.Bytes() == kMiB + 4 * kKeptBackBytes + 6 * kSliceBytes);
}

TEST_CASE("SendWindow: bytes on a way that is closed are not in flight", "[schedule]") {
  SendWindow window;
  SendWindow::Way way;
  SendWindow::Way other;
  window.Open(way);
  window.Open(other);
  window.OnSent(way, kSliceBytes, 5);
  window.OnSent(other, kSliceBytes, 5);
  window.OnReceived(way, kSliceBytes / 2, 6);
  CHECK(window.InFlightBytes() == kSliceBytes * 3 / 2);
  window.Close(way);
  CHECK(window.InFlightBytes() == kSliceBytes);
  CHECK(window.way_count() == 1);
  window.Close(way);
  window.Open(other);  // The way is open again, and nothing is under way on it.
  CHECK(window.InFlightBytes() == 0);
  CHECK(window.way_count() == 1);
}

TEST_CASE("SendWindow: short links of any speed are kept full, and no fuller", "[schedule]") {
  for (const double gigabits : {0.1, 0.5, 1.0, 10.0, 100.0}) {
    CAPTURE(gigabits);
    LinkShape shape{.gigabits_per_s = gigabits, .round_trips_ns = Owners(1, 0)};
    shape.round_trips_ns[0] = kMs / 2;
    SimulatedLink link(shape);
    link.Run(2000 * kMs);
    const SimulatedLink::Figures figures = link.Run(20'000 * kMs);
    CHECK(figures.busy > 0.98);
    const double slices_ms = 4 * static_cast<double>(kSliceBytes) * 8 / gigabits / 1e6;
    CHECK(figures.urgent_ms_most <= slices_ms + 11);
  }
}

TEST_CASE("SendWindow: long links are kept full", "[schedule]") {
  for (const bool slow_start : {false, true}) {
    for (const size_t owner_count : {1, 2, 8}) {
      for (const int64_t round_trip_ms : {5, 20, 80, 200}) {
        for (const double gigabits : {0.1, 1.0, 25.0}) {
          CAPTURE(slow_start, owner_count, round_trip_ms, gigabits);
          const LinkShape shape{.gigabits_per_s = gigabits,
                                .round_trips_ns = Owners(owner_count, round_trip_ms),
                                .slow_start = slow_start};
          SimulatedLink link(shape);
          link.Run(3000 * kMs);
          const SimulatedLink::Figures figures = link.Run(20'000 * kMs);
          CHECK(figures.busy > 0.93 * CreditShare(shape));
          LinkShape twice = shape;
          twice.credit_bytes /= 2;
          if (CreditShare(twice) < 1) continue;  // Then the slice waits for credit.
          // The bytes that fill the way do not hold up an urgent slice.
          const double slices_ms =
              static_cast<double>((10 + owner_count) * kSliceBytes) * 8 / gigabits / 1e6;
          CHECK(figures.urgent_ms <= slices_ms + 20);
        }
      }
    }
  }
}

TEST_CASE("SendWindow: a window of a few slices grows", "[schedule]") {
  SimulatedLink link(
      {.gigabits_per_s = 1, .round_trips_ns = Owners(1, 200), .slice_bytes = 128 * kKiB});
  // The window begins small, after a time with less to send.
  for (int round = 0; round < 20; ++round) {
    link.Round(128 * kKiB);
    link.Rest(100 * kMs);
  }
  link.Run(10'000 * kMs);
  CHECK(link.Run(10'000 * kMs).busy > 0.3);  // The credits allow 0.33.
}

TEST_CASE("SendWindow: the way to far owners does not hold up near owners", "[schedule]") {
  SimulatedLink link(
      {.gigabits_per_s = 1, .round_trips_ns = {kMs / 2, 40 * kMs, kMs / 2, 40 * kMs}});
  link.Run(2000 * kMs);
  const SimulatedLink::Figures figures = link.Run(20'000 * kMs);
  CHECK(figures.busy > 0.93);
  // Filling the far owners' whole way would take 40 ms more of the link than the near owners'
  // slices need.
  CHECK(figures.urgent_ms < 35);
}

TEST_CASE("SendWindow: receipts that come late and together make no link seem faster",
          "[schedule]") {
  // Slices of the near owner return before the process hears of earlier slices of the far owner.
  for (const int64_t cpu_period_ms : {4, 10, 40}) {
    CAPTURE(cpu_period_ms);
    SimulatedLink link({.gigabits_per_s = 1,
                        .round_trips_ns = {kMs / 2, 20 * kMs},
                        .slice_bytes = 64 * kKiB,
                        .cpu_period_ns = cpu_period_ms * kMs});
    uint64_t fastest = 0;
    for (int i = 0; i < 100; ++i) {
      link.Run(50 * kMs);
      fastest = std::max(fastest, link.queue().LinkBytesPerMs());
    }
    CHECK(fastest > 110'000);
    CHECK(fastest < 150'000);
  }
}

TEST_CASE("SendWindow: a burst that a shaper lets pass makes no link seem faster", "[schedule]") {
  SimulatedLink link({.gigabits_per_s = 1,
                      .round_trips_ns = Owners(4, 0),
                      .slice_bytes = 64 * kKiB,
                      .burst_bytes = 250'000});
  for (int round = 0; round < 20; ++round) {
    link.Round(2 * kMiB);
    link.Rest(20 * kMs);
    CHECK(link.queue().LinkBytesPerMs() < 200'000);
  }
  link.Run(50 * kMs);
  CHECK(link.queue().LinkBytesPerMs() > 110'000);
}

TEST_CASE("SendWindow: it follows a link that gets slower, and faster", "[schedule]") {
  SimulatedLink link({.gigabits_per_s = 10, .round_trips_ns = Owners(1, 0)});
  link.Run(1000 * kMs);
  CHECK(link.queue().WindowBytes() > 12 * kMiB);
  link.set_gigabits_per_s(0.1);
  link.Run(3000 * kMs);
  CHECK(link.queue().WindowBytes() < 5 * kSliceBytes);
  link.set_gigabits_per_s(10);
  link.Run(1500 * kMs);
  CHECK(link.queue().WindowBytes() > 12 * kMiB);
}

TEST_CASE("SendWindow: it follows a way that gets longer, and shorter", "[schedule]") {
  SimulatedLink link({.gigabits_per_s = 1, .round_trips_ns = Owners(1, 10)});
  CHECK(link.Run(5000 * kMs).busy > 0.95);
  link.set_round_trip(0, 45 * kMs);
  link.Run(12'000 * kMs);
  CHECK(link.Run(10'000 * kMs).busy > 0.93);
  link.set_round_trip(0, kMs);
  link.Run(12'000 * kMs);
  CHECK(link.Run(10'000 * kMs).urgent_ms_most < 25);
}

TEST_CASE("SendWindow: a link that is always full shows how long the way is", "[schedule]") {
  SimulatedLink link({.gigabits_per_s = 1, .round_trips_ns = Owners(1, 20)});
  link.Run(60'000 * kMs);
  // The time does not count the queues before the way.
  CHECK(link.queue().RoundTripNs() < 32 * kMs);
  CHECK(link.Run(60'000 * kMs).urgent_ms < 20);
}

TEST_CASE("SendWindow: rounds with rests between them do not make the way seem longer",
          "[schedule]") {
  // Connections are slow at first after a rest. That does not make the way seem longer.
  SimulatedLink link({.gigabits_per_s = 1, .round_trips_ns = Owners(2, 40), .slow_start = true});
  for (int round = 0; round < 30; ++round) {
    link.Round(250 * kMiB);
    link.Rest(300 * kMs);
  }
  CHECK(link.queue().RoundTripNs() < 60 * kMs);
  CHECK(link.queue().RoundTripNs() > 40 * kMs);
  CHECK(link.queue().WindowBytes() > 5'000'000);  // The link carries this much in that time.
}

TEST_CASE("SendWindow: small rounds after long rests hold nothing up", "[schedule]") {
  SimulatedLink link({.gigabits_per_s = 1, .round_trips_ns = Owners(4, 40)});
  for (int round = 0; round < 100; ++round) {
    link.Round(kSliceBytes);
    link.Rest(300 * kMs);
  }
  CHECK(link.Run(5000 * kMs).busy > 0.85);
}

TEST_CASE("SendWindow: figures of a peer that make no sense do no harm", "[schedule]") {
  SendWindow window;
  SendWindow::Way way;
  window.Open(way);
  window.OnReceived(way, UINT64_MAX / 2, 1);
  window.OnSent(way, kSliceBytes, 5);
  window.OnReceived(way, UINT64_MAX / 2, 6);
  window.OnReceived(way, UINT64_MAX / 2, 7);
  const uint64_t known_bytes = window.Bytes();
  window.OnSent(way, kSliceBytes, 8);
  window.OnReceived(way, kSliceBytes, 2);  // The clock went back.
  CHECK(window.Bytes() == known_bytes);
  window.OnSent(way, UINT32_MAX, 10);
  window.OnReceived(way, UINT32_MAX, 11);
  CHECK(window.BytesPerMs() <= kGiB);

  SendWindow patient;
  SendWindow::Way slow;
  patient.Open(slow);
  patient.OnSent(slow, kSliceBytes, 1);
  patient.OnReceived(slow, kSliceBytes, INT64_MAX);
  CHECK(patient.RoundTripNs() == 10'000 * kMs);
  CHECK(patient.Bytes() >= 2 * kSliceBytes);
}

// Prints the table in docs/benchmarks/studies/network.md: send_window_test '[.table]'.
TEST_CASE("SendWindow: a table of links", "[.table]") {
  for (const size_t owner_count : {1, 2, 8}) {
    for (const double gigabits : {0.01, 0.1, 1.0, 10.0, 25.0}) {
      for (const int64_t round_trip_ms : {0, 1, 5, 20, 40, 80, 200}) {
        const LinkShape shape{.gigabits_per_s = gigabits,
                              .round_trips_ns = Owners(owner_count, round_trip_ms)};
        SimulatedLink link(shape);
        link.Run(3000 * kMs);
        const SimulatedLink::Figures figures = link.Run(20'000 * kMs);
        std::printf(
            "%zu owners, %5.2f Gb/s, %3d ms: %.2f of the link, credits allow %.2f; urgent %.0f ms, "
            "at most %.0f\n",
            owner_count, gigabits, static_cast<int>(round_trip_ms), figures.busy,
            CreditShare(shape), figures.urgent_ms, figures.urgent_ms_most);
      }
    }
  }
}

}  // namespace
}  // namespace talweg::schedule
