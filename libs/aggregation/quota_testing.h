// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_QUOTA_TESTING_H_
#define TALWEG_LIBS_AGGREGATION_QUOTA_TESTING_H_

#include <cstdint>
#include <string>

#include "libs/view/job_quota.h"

namespace talweg::aggregation {

// A job's quota in tests of shares. A job without a tenant counts as its own tenant, of its weight.
inline view::JobQuota Quota(uint32_t weight, const std::string& tenant = "",
                            uint32_t tenant_weight = 1,
                            view::Priority priority = view::Priority::kNormal) {
  return {.tenant = tenant,
          .priority = priority,
          .weight = weight,
          .tenant_weight = tenant.empty() ? weight : tenant_weight};
}

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_QUOTA_TESTING_H_
