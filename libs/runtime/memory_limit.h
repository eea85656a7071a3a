// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_MEMORY_LIMIT_H_
#define TALWEG_LIBS_RUNTIME_MEMORY_LIMIT_H_

#include <cstdint>
#include <vector>

#include "libs/runtime/control_group.h"

namespace talweg::runtime {

// The most memory that this process may use: the machine's, or less if its control group or one
// above it has a limit (a container, a systemd slice, a batch job). Reads files, so do not call it
// on hot paths.
uint64_t MemoryLimitBytes();

// The lowest limit of these groups of the controller "memory". UINT64_MAX: there is no limit.
uint64_t MemoryLimitBytesOf(const std::vector<ControlGroup>& groups);

}  // namespace talweg::runtime

#endif  // TALWEG_LIBS_RUNTIME_MEMORY_LIMIT_H_
