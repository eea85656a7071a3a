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
#include "libs/encoding/codec.h"
#include "services/aggregator/slot_memory.h"
#include "services/aggregator/summer.h"

namespace talweg::aggregator {

struct DataPlaneOptions {
  std::string name;  // The aggregator's name, for messages.
  Incarnation incarnation;
  uint64_t credit_bytes = 8 * kMiB;
  uint64_t memory_bytes_max = kGiB;
  // When so many bytes of results are under way on a connection, further results wait.
  uint64_t results_window_bytes = aggregation::ResultQueue::kNoWindow;
  // The time of day less the clock's time; 0: the time of day is unknown.
  int64_t unix_ahead_ns = 0;
  // How long a Hello waits for the view of a job that is not known yet, or for one that names its
  // member. Agents may get a view before this aggregator does.
  int64_t unknown_job_hold_ns = 5'000'000'000;
  // A connection that has not said Hello by then is closed.
  int64_t hello_timeout_ns = 10'000'000'000;
  uint64_t refusals_max = 10'000;  // A connection with more refusals is closed.
  // A connection is closed if more bytes of frames wait because its member does not read, besides
  // as many as its job has placed here: results that are short travel in frames.
  uint64_t waiting_frames_bytes_max = 32 * kMiB;
  // `peer_connections_max`: of one member, or of one address without a member's key.
  // `unproven_connections_max`: of all that have not come to a job. 0: any number.
  size_t peer_connections_max = 256;
  size_t unproven_connections_max = 256;
  // How much one pass does before it polls the network again.
  int events_per_poll = 64;
  uint64_t sum_bytes_per_poll = 8 * kMiB;  // The bytes that sums read.
  SlotLimits slots;
};

class SharedLink;

// What a data plane computes with. The lanes of a process share `link`. All outlive the data plane.
struct DataPlaneMachine {
  const Summer* summer = &KernelSummer();
  const encoding::Codec* codec = &encoding::Codecs();
  MemorySource* memory = &AnonymousMemory();
  SharedLink* link = nullptr;  // nullptr: the data plane makes its own.
  // Makes the data thread poll soon, because another lane has left room on the link. Called on any
  // thread. Does not block.
  std::function<void()> wake = [] {};
};

// The bytes that a connection of a job has moved.
struct ConnectionTraffic {
  uint64_t received_bytes = 0;
  uint64_t sent_bytes = 0;
};

// A data plane's counters.
struct DataPlaneTotals {
  uint64_t received_bytes = 0;
  uint64_t sent_bytes = 0;
  uint64_t unreadable_frames = 0;  // With those of connections that never said Hello.
  uint64_t connections = 0;        // Accepted so far.
  uint64_t impostors = 0;          // Hellos that name another member than the connection's key.
  uint64_t hellos_for_unknown_jobs = 0;
  uint64_t connections_over_limit = 0;  // Closed or refused, because there were too many.
  uint64_t results_queued = 0;          // Results that did not leave at once.
  uint64_t results_hurried = 0;         // Queued results that left early, before a FenceAck.
  uint64_t credit_held_bytes = 0;       // Credit that came back later, because jobs share the link.
  aggregation::Counters ended;          // The counters of jobs that are over.
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_DATA_PLANE_OPTIONS_H_
