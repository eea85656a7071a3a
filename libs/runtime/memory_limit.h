// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_MEMORY_LIMIT_H_
#define TALWEG_LIBS_RUNTIME_MEMORY_LIMIT_H_

#include <cstdint>
#include <string>

namespace talweg {

// What this process may use at most: the machine's memory, or less where its control group or one
// above it (a container, a systemd slice, a batch job) has a limit. Reads files; not for hot paths.
uint64_t MemoryLimitBytes();

// The lowest limit of a process whose /proc/<pid>/cgroup has that text, with control groups
// mounted at `mount`, of version 2 or 1; UINT64_MAX when there is none.
uint64_t ControlGroupLimitBytes(const std::string& proc_cgroup, const std::string& mount);

}  // namespace talweg

#endif  // TALWEG_LIBS_RUNTIME_MEMORY_LIMIT_H_
