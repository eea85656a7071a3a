// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_TRAFFIC_COUNTERS_H_
#define TALWEG_LIBS_TRANSPORT_TRAFFIC_COUNTERS_H_

#include "libs/telemetry/counter.h"

namespace talweg::transport {

// The counters of each transport.
struct TrafficCounters {
  explicit TrafficCounters(telemetry::CounterSet* given) : set(given != nullptr ? *given : own) {}

  telemetry::CounterSet own;  // Used when the caller wants no counters.
  telemetry::CounterSet& set;
  telemetry::Counter& refused =
      set.Get("transport_connections_refused", "connection attempts that were no peer of ours");
  telemetry::Counter& frame_bytes_sent = set.Get("transport_frame_bytes_sent");
  telemetry::Counter& write_bytes_sent = set.Get("transport_write_bytes_sent");
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_TRAFFIC_COUNTERS_H_
