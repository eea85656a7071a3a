// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SCHEDULE_LINK_FIXTURE_H_
#define TALWEG_LIBS_SCHEDULE_LINK_FIXTURE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "libs/base/bytes.h"
#include "libs/base/ids.h"
#include "libs/schedule/slice_queue.h"
#include "libs/wire/frames.h"

namespace talweg::schedule {

// The network between an agent and its owners.
struct LinkShape {
  double gigabits_per_s = 1;
  std::vector<int64_t> round_trips_ns;  // To each owner and back.
  uint32_t slice_bytes = 256 * kKiB;
  uint64_t credit_bytes = 8 * kMiB;
  // A connection that has rested begins with ten packets, and doubles them each round trip.
  bool slow_start = false;
  // The agent waits for a CPU for half of each such period, and hears only afterwards of what came.
  int64_t cpu_period_ns = 0;
  // A shaper lets this many bytes pass at once when the link has rested.
  uint64_t burst_bytes = 0;
};

// An agent's link in virtual time. Slices leave through the SliceQueue, one after the other over
// the link. Their owners return credit as soon as aggregators do. Now and then an urgent slice
// comes, and overtakes those that have not left.
class SimulatedLink {
 public:
  struct Figures {
    double busy = 0;            // The part of the time in which the link was busy.
    double urgent_ms = 0;       // From readiness until the link carries it, on average...
    double urgent_ms_most = 0;  // ... and at worst.
  };

  explicit SimulatedLink(LinkShape shape) : shape_(std::move(shape)) {
    owners_.resize(shape_.round_trips_ns.size());
    for (uint32_t i = 0; i < owners_.size(); ++i) {
      queue_.Open(AggregatorIndex{i}, shape_.credit_bytes);
    }
  }

  // Runs with more to send than the link carries.
  Figures Run(int64_t for_ns) {
    return Measure([&, end_ns = now_ns_ + for_ns] {
      const int64_t urgent_every_ns = std::max<int64_t>(97'000'000, 20 * SliceNs());
      int64_t next_urgent_ns = now_ns_ + urgent_every_ns;
      while (now_ns_ < end_ns) {
        for (uint32_t i = 0; i < owners_.size(); ++i) {
          while (queue_.WaitingCount(AggregatorIndex{i}) < 4) Push(i, 0);
        }
        SendAll();
        if (events_.top().at_ns < next_urgent_ns) {
          Step();
          continue;
        }
        now_ns_ = next_urgent_ns;
        next_urgent_ns += urgent_every_ns;
        Push(urgent_owner_++ % static_cast<uint32_t>(owners_.size()), 1);
      }
    });
  }

  // Sends `bytes`, and runs until all of them have arrived.
  Figures Round(uint64_t bytes) {
    return Measure([&] {
      for (uint64_t sent = 0; sent < bytes;) {
        for (uint32_t i = 0; i < owners_.size(); ++i, sent += shape_.slice_bytes) Push(i, 0);
      }
      uint64_t arrived = 0;
      SendAll();
      while (arrived < bytes) {
        arrived += Step();
        SendAll();
      }
    });
  }

  void Rest(int64_t for_ns) {
    const int64_t end_ns = now_ns_ + for_ns;
    while (!events_.empty() && events_.top().at_ns <= end_ns) Step();
    now_ns_ = end_ns;
  }

  void set_gigabits_per_s(double gigabits) { shape_.gigabits_per_s = gigabits; }
  void set_round_trip(size_t owner, int64_t ns) { shape_.round_trips_ns[owner] = ns; }
  const SliceQueue& queue() const { return queue_; }
  int64_t now_ns() const { return now_ns_; }

 private:
  static constexpr int64_t kRestedNs = 200'000'000;
  static constexpr double kFirstPacketsBytes = 14'600;
  static constexpr int64_t kCreditKeptNs = 100'000'000;

  enum class Kind : uint8_t { kLeaves, kArrives, kCredit, kGivesKept };
  struct Event {
    int64_t at_ns = 0;
    uint64_t number = 0;
    Kind kind;
    uint32_t owner = 0;
    uint64_t bytes = 0;
    int64_t ready_ns = 0;  // When an urgent slice was ready; otherwise 0.
    bool operator>(const Event& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : number > other.number;
    }
  };
  struct Owner {
    uint64_t under_way_bytes = 0;
    uint64_t kept_bytes = 0;
    uint64_t kept_number = 0;
    int64_t rested_since_ns = -kRestedNs;
    int64_t started_ns = 0;
    uint64_t since_start_bytes = 0;
    int64_t left_ns = 0;
    uint64_t stripe = 0;
  };

  int64_t TransferNs(uint64_t bytes) const {
    return static_cast<int64_t>(static_cast<double>(bytes) * 8 / shape_.gigabits_per_s);
  }
  int64_t SliceNs() const { return TransferNs(shape_.slice_bytes); }

  void Later(int64_t at_ns, Kind kind, uint32_t owner, uint64_t bytes = 0, int64_t ready_ns = 0) {
    events_.push({at_ns, next_number_++, kind, owner, bytes, ready_ns});
  }

  void Push(uint32_t owner, int32_t priority) {
    // All owners' parts advance alike. The name of an urgent slice's tensor says when the slice was
    // ready.
    queue_.Push({.owner = AggregatorIndex{owner},
                 .priority = priority,
                 .order = priority > 0 ? 0 : owners_[owner].stripe++,
                 .tensor = TensorKey{priority > 0 ? static_cast<uint64_t>(now_ns_) : 0},
                 .slice = SliceIndex{0},
                 .cost_bytes = shape_.slice_bytes});
  }

  void SendAll() {
    while (const auto slice = queue_.Take(now_ns_)) {
      Owner& owner = owners_[slice->owner.value()];
      if (owner.under_way_bytes == 0 &&
          now_ns_ - owner.rested_since_ns >=
              kRestedNs + 2 * shape_.round_trips_ns[slice->owner.value()]) {
        owner.started_ns = now_ns_;
        owner.since_start_bytes = 0;
      }
      owner.under_way_bytes += slice->cost_bytes;
      owner.since_start_bytes += slice->cost_bytes;
      if (shape_.slow_start) {
        const double doublings = std::floor(
            std::log2(static_cast<double>(owner.since_start_bytes) / kFirstPacketsBytes + 1));
        owner.left_ns = std::max(
            owner.left_ns, owner.started_ns + static_cast<int64_t>(doublings) *
                                                  shape_.round_trips_ns[slice->owner.value()]);
      }
      Later(std::max(now_ns_, owner.left_ns), Kind::kLeaves, slice->owner.value(),
            slice->cost_bytes, static_cast<int64_t>(slice->tensor.value()));
    }
  }

  // Performs the next event; returns the bytes that have arrived at an owner.
  uint64_t Step() {
    const Event event = events_.top();
    events_.pop();
    now_ns_ = std::max(now_ns_, event.at_ns);
    const int64_t way_ns = shape_.round_trips_ns[event.owner] / 2;
    Owner& owner = owners_[event.owner];
    switch (event.kind) {
      case Kind::kLeaves: {
        const int64_t begin_ns = std::max(now_ns_, free_at_ns_);
        // The bucket is full again when the link has been free for as long as a burst takes.
        bucket_at_ns_ = std::max(bucket_at_ns_, begin_ns - TransferNs(shape_.burst_bytes)) +
                        TransferNs(event.bytes);
        free_at_ns_ = std::max(begin_ns, bucket_at_ns_);
        carried_bytes_ += event.bytes;
        if (event.ready_ns > 0) {
          const double waited_ms = static_cast<double>(begin_ns - event.ready_ns) * 1e-6;
          urgent_ms_sum_ += waited_ms;
          urgent_ms_most_ = std::max(urgent_ms_most_, waited_ms);
          ++urgent_count_;
        }
        Later(free_at_ns_ + way_ns, Kind::kArrives, event.owner, event.bytes);
        return 0;
      }
      case Kind::kArrives:
        owner.kept_bytes += event.bytes;
        owner.under_way_bytes -= event.bytes;
        owner.rested_since_ns = now_ns_;
        if (owner.kept_bytes > wire::kKeptCreditBytes) {
          GiveBack(event.owner);
        } else {
          Later(now_ns_ + kCreditKeptNs, Kind::kGivesKept, event.owner, ++owner.kept_number);
        }
        return event.bytes;
      case Kind::kGivesKept:
        if (owner.kept_number == event.bytes && owner.kept_bytes > 0) GiveBack(event.owner);
        return 0;
      case Kind::kCredit:
        queue_.ReturnCredit(AggregatorIndex{event.owner}, event.bytes, now_ns_);
        return 0;
    }
    return 0;
  }

  int64_t HeardAtNs(int64_t arrival_ns) const {
    if (shape_.cpu_period_ns == 0) return arrival_ns;
    const int64_t in_period_ns = arrival_ns % shape_.cpu_period_ns;
    return arrival_ns + std::max<int64_t>(shape_.cpu_period_ns / 2 - in_period_ns, 0);
  }

  void GiveBack(uint32_t index) {
    Owner& owner = owners_[index];
    const int64_t arrival_ns = now_ns_ + shape_.round_trips_ns[index] / 2;
    Later(HeardAtNs(arrival_ns), Kind::kCredit, index, owner.kept_bytes);
    owner.kept_bytes = 0;
    ++owner.kept_number;
  }

  Figures Measure(const std::function<void()>& run) {
    carried_bytes_ = 0;
    urgent_ms_sum_ = urgent_ms_most_ = 0;
    urgent_count_ = 0;
    const int64_t begin_ns = now_ns_;
    run();
    const double could_bytes = static_cast<double>(now_ns_ - begin_ns) * shape_.gigabits_per_s / 8;
    return {.busy = static_cast<double>(carried_bytes_) / could_bytes,
            .urgent_ms = urgent_count_ == 0 ? 0 : urgent_ms_sum_ / urgent_count_,
            .urgent_ms_most = urgent_ms_most_};
  }

  LinkShape shape_;
  SliceQueue queue_;
  std::vector<Owner> owners_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t next_number_ = 0;
  int64_t now_ns_ = 1;
  int64_t free_at_ns_ = 0;
  int64_t bucket_at_ns_ = 0;
  uint32_t urgent_owner_ = 0;
  uint64_t carried_bytes_ = 0;
  double urgent_ms_sum_ = 0;
  double urgent_ms_most_ = 0;
  int urgent_count_ = 0;
};

}  // namespace talweg::schedule

#endif  // TALWEG_LIBS_SCHEDULE_LINK_FIXTURE_H_
