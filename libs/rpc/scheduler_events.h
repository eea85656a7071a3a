// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_SCHEDULER_EVENTS_H_
#define TALWEG_LIBS_RPC_SCHEDULER_EVENTS_H_

#include <absl/status/status.h>

#include <cstdint>
#include <string>
#include <variant>

#include "libs/base/ids.h"
#include "libs/view/job_quota.h"
#include "libs/view/view.h"

// What members and aggregators hear from the scheduler, whatever carries it. No gRPC here.
namespace talweg::rpc {

// What a SchedulerClient delivers, in this order: any number of JoinDelayed, then Joined and after
// it anything, or JoinRefused alone.
// After JoinRefused, JobFailed or LeaseLost nothing more comes but Reachable and Unreachable.

struct Joined {
  JobId job;
  int64_t lease_ns = 0;
};
// The process cannot take part: `status` names the thing, the value and the remedy. UNAVAILABLE:
// the scheduler has not answered for join_timeout_ns.
struct JoinRefused {
  absl::Status status;
};
struct ViewPublished {
  view::View view;  // Its epoch is higher than any before it; its digest has been checked.
};
// The scheduler lets it wait, and is asked again: why.
struct JoinDelayed {
  std::string text;
};
struct JobFailed {
  std::string text;  // Who died and why.
};
// Without a step: stop ranks at the end of the step that they are in, and call Quiesced with the
// latest of these. With one: let them end it, and call Quiesced when they have.
struct QuiesceRequested {
  uint64_t id = 0;
  uint64_t step = 0;
};
// Go on. (A ViewPublished ends a quiesce as well.)
struct QuiesceCancelled {
  uint64_t id = 0;
};
// A member is done and contributes to no further round. The view stays as it is.
struct MemberLeft {
  view::MemberIdentity id;
  std::string text;
};
// This incarnation is out: declared lost, or the scheduler does not know its job.
struct LeaseLost {
  std::string text;
};
// The scheduler does not answer. Running steps go on; membership stands still.
struct Unreachable {
  std::string text;
};
struct Reachable {
  int64_t lease_ns = 0;
};

using MemberEvent =
    std::variant<Joined, JoinRefused, ViewPublished, JobFailed, QuiesceRequested, QuiesceCancelled,
                 MemberLeft, LeaseLost, Unreachable, Reachable, JoinDelayed>;

// -------------------------------------------------------------------------------------------------

struct Registered {
  int64_t lease_ns = 0;
};
// As JoinRefused.
struct RegistrationRefused {
  absl::Status status;
};
// The newest view of a running job; it need not have this aggregator.
struct JobViewPublished {
  std::string job_name;
  view::View
      view;  // Its epoch is higher than any before it of this job; its digest has been checked.
  view::JobQuota quota = {};
};
// For a job whose view was published.
struct JobQuotaPublished {
  JobId job;
  view::JobQuota quota;
};
struct JobClosed {
  JobId job;
  std::string text;
};

// After RegistrationRefused or LeaseLost nothing more comes but Reachable and Unreachable.
using AggregatorEvent = std::variant<Registered, RegistrationRefused, JobViewPublished, JobClosed,
                                     LeaseLost, Unreachable, Reachable, JobQuotaPublished>;

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_SCHEDULER_EVENTS_H_
