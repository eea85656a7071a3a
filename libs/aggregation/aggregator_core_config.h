// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_AGGREGATOR_CORE_CONFIG_H_
#define TALWEG_LIBS_AGGREGATION_AGGREGATOR_CORE_CONFIG_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "libs/base/bytes.h"
#include "libs/base/ids.h"

namespace talweg::aggregation {

struct AggregatorCoreConfig {
  JobId job;
  std::string name;
  Incarnation self;       // This aggregator's incarnation, which names its place in a view.
  std::string self_name;  // For texts.
  uint64_t credit_bytes = 8 * kMiB;
  // How many tensor names are remembered, refused ones included. Records are small, but a peer
  // could send names for ever.
  size_t tensors_max = 200'000;
  uint64_t refusals_max = 10'000;  // A connection with more refusals is closed.
  int64_t notice_first_ns = 1'000'000'000;
  int64_t notice_gap_max_ns = 60'000'000'000;
  // While an awaited member is absent: members use these notices to decide how long to wait.
  int64_t absent_notice_gap_max_ns = 4'000'000'000;
  int64_t refused_linger_ns =
      5'000'000'000;  // The connection stays open this long, so that the peer can read the refusal.
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_AGGREGATOR_CORE_CONFIG_H_
