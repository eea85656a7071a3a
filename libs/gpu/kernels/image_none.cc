// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/kernels/image.h"

namespace talweg::gpu::kernels {

std::span<const std::byte> Image() { return {}; }

}  // namespace talweg::gpu::kernels
