// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_AGGREGATOR_CORE_CONFIG_H_
#define TALWEG_LIBS_AGGREGATION_AGGREGATOR_CORE_CONFIG_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "libs/aggregation/departed.h"
#include "libs/base/bytes.h"
#include "libs/base/ids.h"

namespace talweg::aggregation {

struct AggregatorCoreConfig {
  JobId job;
  std::string name;
  Incarnation self;       // This aggregator's incarnation, which names its place in a view.
  std::string self_name;  // For texts.
  Departed departed;      // From an earlier life of the job at this aggregator.
  uint64_t credit_bytes = 8 * kMiB;
  // How many tensor names are remembered, refused ones included. Records are small, but a peer
  // could send names for ever.
  size_t tensors_max = 200'000;
  // How many bytes the names and groups of all tensors may take here, and texts of why some failed.
  uint64_t record_bytes_max = 64 * kMiB;
  // A connection with more refusals is closed: of contributions, and of declarations that ask
  // again.
  uint64_t refusals_max = 10'000;
  int64_t notice_first_ns = 1'000'000'000;
  int64_t notice_gap_max_ns = 60'000'000'000;
  // While an awaited member is absent: members use these notices to decide how long to wait.
  int64_t absent_notice_gap_max_ns = 4'000'000'000;
  // How long the Hello of somebody who is not in the newest view here waits for a newer one.
  int64_t ahead_hold_ns = 5'000'000'000;
  // The time of day less the time that the caller gives; 0: the time of day is unknown.
  int64_t unix_ahead_ns = 0;
  int64_t refused_linger_ns =
      5'000'000'000;  // The connection stays open this long, so that the peer can read the refusal.
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_AGGREGATOR_CORE_CONFIG_H_
