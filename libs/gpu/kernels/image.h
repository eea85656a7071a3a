// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_KERNELS_IMAGE_H_
#define TALWEG_LIBS_GPU_KERNELS_IMAGE_H_

#include <cstddef>
#include <span>

namespace talweg::gpu::kernels {

// The compiled kernels (a fatbin: machine code for each architecture, PTX for later ones). Empty in
// a build without --config=cuda.
std::span<const std::byte> Image();

}  // namespace talweg::gpu::kernels

#endif  // TALWEG_LIBS_GPU_KERNELS_IMAGE_H_
