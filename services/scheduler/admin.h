// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_SCHEDULER_ADMIN_H_
#define TALWEG_SERVICES_SCHEDULER_ADMIN_H_

#include <cstdint>

#include "libs/membership/scheduler_core.h"
#include "proto/talweg/scheduler/v1/admin.pb.h"

// AdminService's answers from the scheduler core.
namespace talweg::scheduler {

v1::JobSummary SummaryOf(const membership::SchedulerCore& core, const membership::LiveJob& job);
// Fills in the joins that wait for room, and what each tenant uses.
void FillWaiting(const membership::SchedulerCore& core, int64_t now_ns,
                 v1::ListJobsResponse* response);
v1::GetJobResponse DetailsOf(const membership::SchedulerCore& core, const membership::LiveJob& job,
                             int64_t now_ns);
v1::ListAggregatorsResponse AggregatorsOf(const membership::SchedulerCore& core, int64_t now_ns);

}  // namespace talweg::scheduler

#endif  // TALWEG_SERVICES_SCHEDULER_ADMIN_H_
