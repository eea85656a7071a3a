// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/kernels/image.h"

// Made by bazel/deps/cuda: the file's bytes as an object.
extern "C" const std::byte talweg_reduce_kernels_begin[];
extern "C" const std::byte talweg_reduce_kernels_end[];

namespace talweg::gpu::kernels {

std::span<const std::byte> Image() {
  return {talweg_reduce_kernels_begin, talweg_reduce_kernels_end};
}

}  // namespace talweg::gpu::kernels
