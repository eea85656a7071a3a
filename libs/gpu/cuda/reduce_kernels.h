// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_CUDA_REDUCE_KERNELS_H_
#define TALWEG_LIBS_GPU_CUDA_REDUCE_KERNELS_H_

#include <absl/status/statusor.h>

#include <cstddef>
#include <map>
#include <span>
#include <string>

#include "libs/gpu/cuda/cuda_context.h"
#include "libs/gpu/kernels/reduce_plan.h"

namespace talweg::gpu::cuda {

// The sum kernels of libs/gpu/kernels, loaded into one context.
class ReduceKernels {
 public:
  // The context outlives this object.
  explicit ReduceKernels(CudaContext& context) : context_(context) {}
  ~ReduceKernels();
  ReduceKernels(const ReduceKernels&) = delete;
  ReduceKernels& operator=(const ReduceKernels&) = delete;

  // Call it once. If there are no kernels, or none for this GPU, Launch returns why.
  absl::Status Load(std::span<const std::byte> image);
  // UNIMPLEMENTED: there are no kernels.
  absl::Status Launch(kernels::ReducePlan& plan, CuStream stream);

 private:
  absl::Status LoadAll(std::span<const std::byte> image);

  CudaContext& context_;
  absl::Status status_;
  int multiprocessor_count_ = 1;
  CuModule module_ = nullptr;
  std::map<std::string, CuFunction> functions_;
};

}  // namespace talweg::gpu::cuda

#endif  // TALWEG_LIBS_GPU_CUDA_REDUCE_KERNELS_H_
