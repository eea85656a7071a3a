// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_LEASES_H_
#define TALWEG_LIBS_MEMBERSHIP_LEASES_H_

#include <cstdint>
#include <string>

#include "libs/membership/requests.h"

namespace talweg::membership {

// How long members and aggregators may be silent. Where the scheduler itself was not there for a
// while (its process was stopped, or its machine), their words may still be on the way: all leases
// begin anew, and for one lease a broken stream is no loss.
class Leases {
 public:
  Leases(const Config& config, int64_t now_ns)
      : lease_ns_(config.lease_ns), tick_ns_(config.TickNs()), last_ns_(now_ns) {}

  // An event comes. How long the scheduler was not there before it; 0: it was.
  int64_t ObserveGap(int64_t now_ns);

  // When a lease ends that begins now.
  int64_t EndNs(int64_t now_ns) const { return now_ns + lease_ns_; }
  // The last tick before its end counts: whoever is silent holds nobody up for longer than a lease.
  bool HasLapsed(int64_t end_ns, int64_t now_ns) const { return end_ns <= now_ns + tick_ns_; }
  // What is said of one that has lapsed. `shut_out`: why its connection was ended, or "".
  std::string LapseText(const std::string& shut_out) const;

  // Whether a stream that breaks is a loss. If not, the lease decides.
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
