// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_SCHEDULER_EVENTS_H_
#define TALWEG_LIBS_RPC_SCHEDULER_EVENTS_H_

#include <absl/status/status.h>

#include <cstdint>
#include <string>
#include <variant>

#include "libs/base/ids.h"
#include "libs/view/gone.h"
#include "libs/view/job_quota.h"
#include "libs/view/view.h"

// The scheduler's events for members and aggregators, independent of gRPC.
namespace talweg::rpc {

// The events of a SchedulerClient, in this order: any number of JoinDelayed; then either Joined and
// any others, or only JoinRefused. After JoinRefused, JobFailed or LeaseLost only Reachable and
// Unreachable may come.

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
// The scheduler makes the member wait, and is asked again. `text` says why.
struct JoinDelayed {
  std::string text;
};
struct JobFailed {
  std::string text;  // Who died and why.
};
// `step` 0: stop each rank at the end of its current step, and call Quiesced with the latest of
// these steps. Else: let the ranks end `step`, and call Quiesced when they have.
struct QuiesceRequested {
  uint64_t id = 0;
  uint64_t step = 0;
};
// The ranks may go on. (A ViewPublished ends a quiesce, too.)
struct QuiesceCancelled {
  uint64_t id = 0;
};
// A member is done, and contributes to no further round. The view does not change.
struct MemberLeft {
  view::MemberIdentity id;
  std::string text;
};
// This incarnation is out: the scheduler has declared it lost, or does not know its job.
struct LeaseLost {
  std::string text;
};
// The scheduler does not answer. Running steps go on; membership does not change.
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
// The newest view of a running job. This aggregator may not be in it.
struct JobViewPublished {
  std::string job_name;
  view::View
      view;  // Its epoch is higher than any before it of this job; its digest has been checked.
  view::JobQuota quota = {};
  view::Gone gone = {};
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

// After RegistrationRefused or LeaseLost only Reachable and Unreachable may come.
using AggregatorEvent = std::variant<Registered, RegistrationRefused, JobViewPublished, JobClosed,
                                     LeaseLost, Unreachable, Reachable, JobQuotaPublished>;

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_SCHEDULER_EVENTS_H_
