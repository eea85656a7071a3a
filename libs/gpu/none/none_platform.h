// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_NONE_NONE_PLATFORM_H_
#define TALWEG_LIBS_GPU_NONE_NONE_PLATFORM_H_

#include <memory>

#include "libs/gpu/device.h"

namespace talweg::gpu {

// A machine without GPUs. Every call returns `why`, an error with reason and remedy.
std::unique_ptr<Platform> NewNonePlatform(absl::Status why);

}  // namespace talweg::gpu

#endif  // TALWEG_LIBS_GPU_NONE_NONE_PLATFORM_H_
