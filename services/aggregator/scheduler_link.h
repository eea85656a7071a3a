// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_SCHEDULER_LINK_H_
#define TALWEG_SERVICES_AGGREGATOR_SCHEDULER_LINK_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "libs/rpc/scheduler_events.h"
#include "libs/view/view.h"

namespace talweg::aggregator {

// One incarnation's place in the scheduler's pool: registers, keeps the lease, watches jobs.
//
// The data thread makes, calls and destroys it. Nothing blocks. Events and answers come on that
// thread, never inside a call of the link, and none after the link is destroyed.
class SchedulerLink {
 public:
  using OnEvent = std::function<void(const rpc::AggregatorEvent& event)>;

  // Without an earlier Deregister, the scheduler declares the aggregator lost.
  virtual ~SchedulerLink() = default;

  // Call it once.
  virtual void Register(view::ViewAggregator self) = 0;

  // Asks the scheduler for no further jobs. `done` gets the number of running jobs that still use
  // this aggregator (JobClosed follows for each), or why the scheduler did not answer within
  // `timeout_ns`.
  virtual void Drain(std::string text, int64_t timeout_ns,
                     std::function<void(absl::StatusOr<uint32_t> jobs)> done) = 0;
  // Leaves the pool. Jobs that still use this aggregator lose it. No event follows.
  virtual void Deregister(std::string text, int64_t timeout_ns,
                          std::function<void(absl::Status told)> done) = 0;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_SCHEDULER_LINK_H_
