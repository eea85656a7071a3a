// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_DATA_PLANE_OPTIONS_H_
#define TALWEG_SERVICES_AGGREGATOR_DATA_PLANE_OPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "libs/aggregation/result_queue.h"
#include "libs/aggregation/status.h"
#include "libs/base/bytes.h"
#include "libs/base/ids.h"
#include "services/aggregator/slot_memory.h"
#include "services/aggregator/summer.h"

namespace talweg::aggregator {

struct DataPlaneOptions {
  std::string name;  // The aggregator's, for texts.
  Incarnation incarnation;
  uint64_t credit_bytes = 8 * kMiB;
  uint64_t memory_bytes_max = kGiB;
  // So much of results may be under way on a connection before others wait for their turn.
  uint64_t results_window_bytes = aggregation::ResultQueue::kNoWindow;
  // How long a Hello waits for the view of a job that is not known yet: agents may hear of a view
  // before this aggregator does.
  int64_t unknown_job_hold_ns = 5'000'000'000;
  // A connection that has not said Hello by then is closed.
  int64_t hello_timeout_ns = 10'000'000'000;
  uint64_t refusals_max = 10'000;  // A connection with more of them is closed.
  // Connections of one member, and of one address that has shown no member's key; and of all that
  // have not come to a job. 0: any number.
  size_t peer_connections_max = 256;
  size_t unproven_connections_max = 256;
  // What one pass does before it looks at the network again.
  int events_per_poll = 64;
  uint64_t sum_bytes_per_poll = 8 * kMiB;  // Read by sums.
  SlotLimits slots;
};

class SharedLink;

// What a data plane computes with, and shares with the other lanes of its process. All outlive it.
struct DataPlaneMachine {
  const Summer* summer = &KernelSummer();
  MemorySource* memory = &AnonymousMemory();
  SharedLink* link = nullptr;  // nullptr: one of its own.
  // Has the data plane's thread poll soon: another lane has left room on the link. Any thread; does
  // not block.
  std::function<void()> wake = [] {};
};

// What a connection of a job has moved.
struct ConnectionTraffic {
  uint64_t received_bytes = 0;
  uint64_t sent_bytes = 0;
};

// What a data plane has counted.
struct DataPlaneTotals {
  uint64_t received_bytes = 0;
  uint64_t sent_bytes = 0;
  uint64_t unreadable_frames = 0;  // Also on connections that never said Hello.
  uint64_t connections = 0;        // Accepted so far.
  uint64_t impostors = 0;          // Hellos of another member than the connection's key.
  uint64_t hellos_for_unknown_jobs = 0;
  uint64_t connections_over_limit = 0;  // Closed or refused, as there were as many as may be.
  uint64_t results_queued = 0;          // Did not leave at once.
  uint64_t results_hurried = 0;         // Were queued, and left before a FenceAck.
  uint64_t credit_held_bytes = 0;       // Came back later, as jobs share the link.
  aggregation::Counters ended;          // What jobs that are gone have counted.
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_DATA_PLANE_OPTIONS_H_
