// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/affinity.h"

#include <sched.h>

#include <cerrno>
#include <string>

namespace talweg::runtime {

absl::Status RunOnCpu(uint32_t cpu) {
  const std::string what = "running a thread on CPU " + std::to_string(cpu);
  if (cpu >= CPU_SETSIZE) return absl::ErrnoToStatus(EINVAL, what);
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  // 0: the calling thread.
  if (sched_setaffinity(0, sizeof set, &set) != 0) return absl::ErrnoToStatus(errno, what);
  return absl::OkStatus();
}

}  // namespace talweg::runtime
