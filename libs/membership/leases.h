// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_LEASES_H_
#define TALWEG_LIBS_MEMBERSHIP_LEASES_H_

#include <cstdint>
#include <string>

#include "libs/membership/requests.h"

namespace talweg::membership {

// How long members and aggregators may be silent. If the scheduler itself did not run for a while
// (its process or machine was stopped), their messages may still be on the way: all leases begin
// anew, and for one lease a broken stream is not a loss.
class Leases {
 public:
  Leases(const Config& config, int64_t now_ns)
      : lease_ns_(config.lease_ns), tick_ns_(config.TickNs()), last_ns_(now_ns) {}

  // Call it for each event. Returns how long the scheduler did not run before it; 0: it ran.
  int64_t ObserveGap(int64_t now_ns);

  // When a lease that begins now ends.
  int64_t EndNs(int64_t now_ns) const { return now_ns + lease_ns_; }
  // The last tick before the end counts, so that a silent member holds nobody up for longer than a
  // lease.
  bool HasLapsed(int64_t end_ns, int64_t now_ns) const { return end_ns <= now_ns + tick_ns_; }
  // The text for a lapsed lease. `shut_out`: why its connection was ended, or "".
  std::string LapseText(const std::string& shut_out) const;

  // Whether a stream that breaks is a loss. If not, only the lease decides.
  bool StreamsCount(int64_t now_ns) const { return now_ns >= streams_count_from_ns_; }

  // The time of the latest event.
  int64_t last_ns() const { return last_ns_; }

 private:
  const int64_t lease_ns_;
  const int64_t tick_ns_;
  int64_t last_ns_;
  int64_t streams_count_from_ns_ = INT64_MIN;
};

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_LEASES_H_
