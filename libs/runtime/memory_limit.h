// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_MEMORY_LIMIT_H_
#define TALWEG_LIBS_RUNTIME_MEMORY_LIMIT_H_

#include <cstdint>
#include <string>

namespace talweg::runtime {

// The most memory that this process may use: the machine's, or less if its control group or one
// above it has a limit (a container, a systemd slice, a batch job). Reads files, so do not call it
// on hot paths.
uint64_t MemoryLimitBytes();

// The lowest limit of a process with this text in /proc/<pid>/cgroup. Control groups, of version 2
// or 1, are mounted at `mount`. UINT64_MAX: there is no limit.
uint64_t ControlGroupLimitBytes(const std::string& proc_cgroup, const std::string& mount);

}  // namespace talweg::runtime

#endif  // TALWEG_LIBS_RUNTIME_MEMORY_LIMIT_H_
