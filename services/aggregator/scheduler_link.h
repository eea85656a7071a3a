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
// Belongs to the data thread, which makes, calls and destroys it. Nothing blocks. Events and
// answers come on that thread, never from within a call of the link. None comes after the link is
// gone.
class SchedulerLink {
 public:
  using OnEvent = std::function<void(const rpc::AggregatorEvent& event)>;

  // Without Deregister before, the scheduler takes the end of the link for a loss.
  virtual ~SchedulerLink() = default;

  // Once.
  virtual void Register(view::ViewAggregator self) = 0;

  // Asks to be taken into no further job. `done` gets how many running jobs still use it
  // (JobClosed tells of each that ends), or why the scheduler gave no answer in `timeout_ns`.
  virtual void Drain(std::string text, int64_t timeout_ns,
                     std::function<void(absl::StatusOr<uint32_t> jobs)> done) = 0;
  // The last word, and a loss for the jobs that still use this aggregator. No event follows.
  virtual void Deregister(std::string text, int64_t timeout_ns,
                          std::function<void(absl::Status told)> done) = 0;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_SCHEDULER_LINK_H_
