// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_NONE_NONE_PLATFORM_H_
#define TALWEG_LIBS_GPU_NONE_NONE_PLATFORM_H_

#include <memory>

#include "libs/gpu/device.h"

namespace talweg::gpu {

// A machine without GPUs. Every call fails with `why`, which is not OK and has reason and remedy.
std::unique_ptr<Platform> NewNonePlatform(absl::Status why);

}  // namespace talweg::gpu

#endif  // TALWEG_LIBS_GPU_NONE_NONE_PLATFORM_H_
