// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_CPU_QUOTA_H_
#define TALWEG_LIBS_RUNTIME_CPU_QUOTA_H_

#include <optional>
#include <string>
#include <vector>

#include "libs/runtime/control_group.h"

namespace talweg::runtime {

// How many CPUs' time this process may use, if its control group or one above it has a quota (a
// container, a systemd unit). Reads files, so do not call it on hot paths.
std::optional<double> CpuQuota();

// The lowest quota of these groups of the controller "cpu".
std::optional<double> CpuQuotaOf(const std::vector<ControlGroup>& groups);

}  // namespace talweg::runtime

#endif  // TALWEG_LIBS_RUNTIME_CPU_QUOTA_H_
