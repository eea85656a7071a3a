// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_KERNELS_REDUCE_PLAN_H_
#define TALWEG_LIBS_GPU_KERNELS_REDUCE_PLAN_H_

#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "libs/base/dtype.h"
#include "libs/gpu/device.h"
#include "libs/gpu/kernels/reduce_arguments.h"

namespace talweg::gpu::kernels {

// The plan of one Device::Reduce.
struct ReducePlan {
  // For a single input that is not scaled: its bytes are copied, NaNs unchanged, except onto
  // itself.
  bool is_copy = false;
  uint64_t bytes = 0;  // In each buffer; 0: nothing to do.
  // The dtype whose kernel does it, with elements of the same size.
  DType dtype = DType::kUnspecified;
  Combine combine = Combine::kSum;
  ReduceArguments arguments = {};
};

// INVALID_ARGUMENT: the arguments break the rules of Device::ReduceTo.
absl::StatusOr<ReducePlan> PlanReduce(const ReduceSpec& spec, std::span<const uint64_t> inputs,
                                      std::span<const uint64_t> outputs, uint64_t element_count);
inline absl::StatusOr<ReducePlan> PlanReduce(const ReduceSpec& spec,
                                             std::span<const uint64_t> inputs, uint64_t output,
                                             uint64_t element_count) {
  return PlanReduce(spec, inputs, {&output, 1}, element_count);
}

// Returns the name of a plan's kernel: "talweg_reduce_f32_sum".
std::string KernelName(DType dtype, Combine combine);
// Returns the names of all kernels.
std::vector<std::string> KernelNames();

// Runs the kernel on the host, as `thread_count` threads one after the other. The plan's addresses
// are those of host memory.
void RunOnHost(const ReducePlan& plan, uint64_t thread_count);

}  // namespace talweg::gpu::kernels

#endif  // TALWEG_LIBS_GPU_KERNELS_REDUCE_PLAN_H_
