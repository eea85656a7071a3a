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
  // This build's; outlives the platform.
  std::span<const std::byte> kernel_image = kernels::Image();
};

// NVIDIA's GPUs, through what is installed on this machine at the time of the call. Nothing of it
// is linked. UNIMPLEMENTED or NOT_FOUND, with the remedy, where there is no driver or no GPU. Open
// retains the GPU's primary context, and loads the kernels into it.
absl::StatusOr<std::unique_ptr<Platform>> NewCudaPlatform(const CudaOptions& options);

// What can be known without a context, for people.
struct CudaFacts {
  absl::Status driver;     // Why there is none, or no GPU.
  int driver_version = 0;  // 13000: CUDA 13.0
  std::vector<GpuInfo> gpus;
  absl::Status nics_reach_gpus;  // Why NICs do not reach the first GPU that they do not.
  absl::Status nccl;             // Why there is none.
  std::string nccl_version;
  std::string nccl_library;
  bool has_kernels = false;  // This build's.
};

CudaFacts ReadCudaFacts(const CudaOptions& options);

}  // namespace talweg::gpu

#endif  // TALWEG_LIBS_GPU_CUDA_CUDA_PLATFORM_H_
