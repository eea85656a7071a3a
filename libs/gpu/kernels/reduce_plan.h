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

// How one Device::Reduce is done.
struct ReducePlan {
  // A single input that nothing scales: its bytes are copied, NaNs untouched, except onto itself.
  bool is_copy = false;
  uint64_t bytes = 0;                 // In each buffer; 0: nothing to do.
  DType dtype = DType::kUnspecified;  // Whose kernel does it: elements of the same size.
  Combine combine = Combine::kSum;
  ReduceArguments arguments = {};
};

// INVALID_ARGUMENT: the arguments are not as Device::ReduceTo wants them.
absl::StatusOr<ReducePlan> PlanReduce(const ReduceSpec& spec, std::span<const uint64_t> inputs,
                                      std::span<const uint64_t> outputs, uint64_t element_count);
inline absl::StatusOr<ReducePlan> PlanReduce(const ReduceSpec& spec,
                                             std::span<const uint64_t> inputs, uint64_t output,
                                             uint64_t element_count) {
  return PlanReduce(spec, inputs, {&output, 1}, element_count);
}

// "talweg_reduce_f32_sum": of a plan's dtype and combination.
std::string KernelName(DType dtype, Combine combine);
// The names of all kernels.
std::vector<std::string> KernelNames();

// Does on the host what the kernel does on a GPU, as thread_count threads one after the other. The
// plan's addresses are those of host memory.
void RunOnHost(const ReducePlan& plan, uint64_t thread_count);

}  // namespace talweg::gpu::kernels

#endif  // TALWEG_LIBS_GPU_KERNELS_REDUCE_PLAN_H_
