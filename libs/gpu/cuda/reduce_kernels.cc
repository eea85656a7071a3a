// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/cuda/reduce_kernels.h"

#include <algorithm>
#include <cstdint>

#include "libs/base/check.h"
#include "libs/status/status.h"

namespace talweg::gpu::cuda {
namespace {

// The most blocks of a grid for each multiprocessor. With more, each thread has too little to do.
// The kernels loop over elements that the grid does not cover.
constexpr uint64_t kBlocksPerMultiprocessor = 8;

}  // namespace

ReduceKernels::~ReduceKernels() {
  if (module_ != nullptr) context_.driver().ModuleUnload(module_);
}

absl::Status ReduceKernels::Load(std::span<const std::byte> image) {
  TALWEG_RETURN_IF_ERROR(context_.Check(
      context_.driver().DeviceGetAttribute(&multiprocessor_count_, kCuAttributeMultiprocessorCount,
                                           context_.device()),
      "cuDeviceGetAttribute"));
  status_ = LoadAll(image);
  return absl::OkStatus();
}

absl::Status ReduceKernels::LoadAll(std::span<const std::byte> image) {
  if (image.empty()) {
    return absl::UnimplementedError(
        "this build has no GPU kernels: build with bazel build --config=cuda");
  }
  const DriverApi& api = context_.driver();
  TALWEG_RETURN_IF_ERROR(
      context_.Check(api.ModuleLoadData(&module_, image.data()), "cuModuleLoadData"));
  // Loads all functions now. A driver that loads lazily loads a function on first use, and may then
  // wait for everything on the GPU. A step must not wait like that while collectives are under way.
  for (const std::string& name : kernels::KernelNames()) {
    TALWEG_RETURN_IF_ERROR(context_.Check(
        api.ModuleGetFunction(&functions_[name], module_, name.c_str()), "cuModuleGetFunction"));
  }
  return absl::OkStatus();
}

absl::Status ReduceKernels::Launch(kernels::ReducePlan& plan, CuStream stream) {
  TALWEG_RETURN_IF_ERROR(status_);
  const auto kernel = functions_.find(kernels::KernelName(plan.dtype, plan.combine));
  TALWEG_CHECK(kernel != functions_.end());  // PlanReduce plans no other kernels.
  const uint64_t work = std::max(plan.arguments.vectors, plan.arguments.head);
  const uint64_t blocks_wanted = (work + kernels::kBlockThreads - 1) / kernels::kBlockThreads;
  const uint64_t blocks_max =
      kBlocksPerMultiprocessor * static_cast<uint64_t>(std::max(multiprocessor_count_, 1));
  const unsigned blocks = static_cast<unsigned>(std::clamp<uint64_t>(blocks_wanted, 1, blocks_max));
  void* parameters[] = {&plan.arguments};
  return context_.Check(
      context_.driver().LaunchKernel(kernel->second, blocks, 1, 1, kernels::kBlockThreads, 1, 1, 0,
                                     stream, parameters, nullptr),
      "cuLaunchKernel");
}

}  // namespace talweg::gpu::cuda
