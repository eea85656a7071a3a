// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_AFFINITY_H_
#define TALWEG_LIBS_RUNTIME_AFFINITY_H_

#include <absl/status/status.h>

#include <cstdint>

namespace talweg::runtime {

// From now on the calling thread, and threads that it starts, run on that CPU alone, as the kernel
// counts CPUs. The error names the CPU.
absl::Status RunOnCpu(uint32_t cpu);

}  // namespace talweg::runtime

#endif  // TALWEG_LIBS_RUNTIME_AFFINITY_H_
