// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_STATUS_REPORT_H_
#define TALWEG_SERVICES_AGGREGATOR_STATUS_REPORT_H_

#include <cstdint>

#include "proto/talweg/aggregator/v1/aggregator.pb.h"
#include "services/aggregator/aggregator_data_plane.h"

namespace talweg::aggregator {

// Fills the jobs, totals and memory of `response` from the data plane. The caller fills the rest
// (address, scheduler, start). Call it on the data thread.
void FillStatus(const AggregatorDataPlane& data_plane,
                const aggregator::v1::GetStatusRequest& request, int64_t now_ns,
                aggregator::v1::GetStatusResponse* response);

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_STATUS_REPORT_H_
