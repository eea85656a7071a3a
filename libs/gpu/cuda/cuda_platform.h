// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_CUDA_CUDA_PLATFORM_H_
#define TALWEG_LIBS_GPU_CUDA_CUDA_PLATFORM_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "libs/gpu/device.h"
#include "libs/gpu/kernels/image.h"

namespace talweg::gpu {

struct CudaOptions {
  // Names for dlopen, or paths. The first NCCL that opens is taken.
  std::string driver_library = "libcuda.so.1";
  std::vector<std::string> nccl_libraries = {"libnccl.so.2"};
  // The kernels of this build; outlives the platform.
  std::span<const std::byte> kernel_image = kernels::Image();
};

// NVIDIA's GPUs, through the libraries that are installed on this machine at the time of the call;
// none is linked. UNIMPLEMENTED or NOT_FOUND, with the remedy, if there is no driver or no GPU.
// Open retains the GPU's primary context, and loads the kernels into it.
absl::StatusOr<std::unique_ptr<Platform>> NewCudaPlatform(const CudaOptions& options);

// Facts that need no context, for `talweg doctor`.
struct CudaFacts {
  absl::Status driver;     // OK, or why there is no driver or no GPU.
  int driver_version = 0;  // 13000: CUDA 13.0
  std::vector<GpuInfo> gpus;
  absl::Status nics_reach_gpus;  // OK, or why NICs cannot reach a GPU: the first such GPU.
  absl::Status nccl;             // OK, or why there is no NCCL.
  std::string nccl_version;
  std::string nccl_library;
  bool has_kernels = false;  // Whether this build has kernels.
};

CudaFacts ReadCudaFacts(const CudaOptions& options);

}  // namespace talweg::gpu

#endif  // TALWEG_LIBS_GPU_CUDA_CUDA_PLATFORM_H_
