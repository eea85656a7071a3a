// SPDX-License-Identifier: Apache-2.0
//
// The kernels as a GPU's entry points, found by name: talweg_reduce_<dtype>_<combination>.
#include "libs/gpu/kernels/reduce_element.h"

namespace talweg::gpu::kernels {

#define TALWEG_GPU_ENTRY(dtype, combination, element, combine)                              \
  extern "C" __global__ void __launch_bounds__(kBlockThreads)                               \
      talweg_reduce_##dtype##_##combination(const __grid_constant__ ReduceArguments args) { \
    Kernel<element, combine>::Run(args, uint64_t{blockIdx.x} * blockDim.x + threadIdx.x,    \
                                  uint64_t{gridDim.x} * blockDim.x);                        \
  }
TALWEG_GPU_ALL_KERNELS(TALWEG_GPU_ENTRY)
#undef TALWEG_GPU_ENTRY

}  // namespace talweg::gpu::kernels
