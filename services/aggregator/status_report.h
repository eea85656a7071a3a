// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_STATUS_REPORT_H_
#define TALWEG_SERVICES_AGGREGATOR_STATUS_REPORT_H_

#include <cstdint>

#include "proto/talweg/aggregator/v1/aggregator.pb.h"
#include "services/aggregator/aggregator_data_plane.h"

namespace talweg::aggregator {

// What the data plane does, in the words of the admin service: jobs, totals, memory. The rest of
// the response (address, scheduler, start) is the caller's. On the data thread.
void FillStatus(const AggregatorDataPlane& data_plane,
                const aggregator::v1::GetStatusRequest& request, int64_t now_ns,
                aggregator::v1::GetStatusResponse* response);

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_STATUS_REPORT_H_
