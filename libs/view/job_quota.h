// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_VIEW_JOB_QUOTA_H_
#define TALWEG_LIBS_VIEW_JOB_QUOTA_H_

#include <cstdint>
#include <string>

namespace talweg::view {

// Which job goes first if several want the same. The numbers are part of the protocol.
enum class Priority : uint8_t { kLow = 1, kNormal = 2, kHigh = 3 };

inline constexpr uint64_t kNoLimit = UINT64_MAX;

// What a job, or all jobs of a tenant, may place at one aggregator.
struct PlaceLimit {
  uint64_t memory_bytes_max = kNoLimit;  // Slots and results.
  uint64_t tensors_max = kNoLimit;

  friend bool operator==(const PlaceLimit&, const PlaceLimit&) = default;
};

// What the scheduler's rules tell aggregators about one job (docs/quotas.md).
struct JobQuota {
  std::string tenant;  // Empty: none; the job shares as a tenant of its own.
  Priority priority = Priority::kNormal;
  uint32_t weight = 1;         // Relative to the tenant's other jobs. At least 1.
  uint32_t tenant_weight = 1;  // Relative to other tenants. At least 1.
  PlaceLimit limit;
  PlaceLimit tenant_limit;

  friend bool operator==(const JobQuota&, const JobQuota&) = default;
};

}  // namespace talweg::view

#endif  // TALWEG_LIBS_VIEW_JOB_QUOTA_H_
