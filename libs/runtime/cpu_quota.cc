// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/cpu_quota.h"

#include <fstream>

namespace talweg::runtime {
namespace {

// The microseconds of CPU time in each period, and the period's. A group without a quota has "max"
// (version 2) or -1 (version 1) in the place of the first.
std::optional<double> QuotaOf(const ControlGroup& group) {
  double quota_us = 0;
  double period_us = 0;
  if (group.is_v2) {
    std::ifstream(group.directory + "/cpu.max") >> quota_us >> period_us;
  } else {
    std::ifstream(group.directory + "/cpu.cfs_quota_us") >> quota_us;
    std::ifstream(group.directory + "/cpu.cfs_period_us") >> period_us;
  }
  if (!(quota_us > 0 && period_us > 0)) return std::nullopt;
  return quota_us / period_us;
}

}  // namespace

std::optional<double> CpuQuota() { return CpuQuotaOf(OwnControlGroups("cpu")); }

std::optional<double> CpuQuotaOf(const std::vector<ControlGroup>& groups) {
  std::optional<double> lowest;
  for (const ControlGroup& group : groups) {
    const std::optional<double> quota = QuotaOf(group);
    if (quota && (!lowest || *quota < *lowest)) lowest = quota;
  }
  return lowest;
}

}  // namespace talweg::runtime
