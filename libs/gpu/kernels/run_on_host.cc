// SPDX-License-Identifier: Apache-2.0
//
// Compiled without contraction of products and sums, as reduce_element.h asks.
#include <cstddef>

#include "libs/base/check.h"
#include "libs/gpu/kernels/reduce_element.h"
#include "libs/gpu/kernels/reduce_plan.h"

namespace talweg::gpu::kernels {
namespace {

// Named as TALWEG_GPU_ALL_KERNELS names dtypes.
constexpr DType kDType_f32 = DType::kF32;
constexpr DType kDType_f64 = DType::kF64;
constexpr DType kDType_f16 = DType::kF16;
constexpr DType kDType_bf16 = DType::kBF16;
constexpr DType kDType_i8 = DType::kI8;
constexpr DType kDType_u8 = DType::kU8;
constexpr DType kDType_i16 = DType::kI16;
constexpr DType kDType_u16 = DType::kU16;
constexpr DType kDType_i32 = DType::kI32;
constexpr DType kDType_u32 = DType::kU32;
constexpr DType kDType_i64 = DType::kI64;
constexpr DType kDType_u64 = DType::kU64;

using HostKernel = void (*)(const ReduceArguments&, uint64_t thread, uint64_t thread_count);

HostKernel Find(DType dtype, Combine combine) {
#define TALWEG_GPU_FIND(name, combination, element, entry) \
  if (dtype == kDType_##name && combine == (entry)) return &Kernel<element, entry>::Run;
  TALWEG_GPU_ALL_KERNELS(TALWEG_GPU_FIND)
#undef TALWEG_GPU_FIND
  return nullptr;
}

}  // namespace

std::vector<std::string> KernelNames() {
  return {
#define TALWEG_GPU_NAME(name, combination, element, entry) KernelName(kDType_##name, entry),
      TALWEG_GPU_ALL_KERNELS(TALWEG_GPU_NAME)
#undef TALWEG_GPU_NAME
  };
}

void RunOnHost(const ReducePlan& plan, uint64_t thread_count) {
  if (plan.bytes == 0) return;
  const ReduceArguments& arguments = plan.arguments;
  if (plan.is_copy) {
    for (uint32_t o = 0; o < arguments.output_count; ++o) {
      std::memmove(reinterpret_cast<std::byte*>(arguments.outputs[o]),
                   reinterpret_cast<const std::byte*>(arguments.inputs[0]), plan.bytes);
    }
    return;
  }
  const HostKernel kernel = Find(plan.dtype, plan.combine);
  TALWEG_CHECK(kernel != nullptr);
  for (uint64_t thread = 0; thread < thread_count; ++thread) {
    kernel(arguments, thread, thread_count);
  }
}

}  // namespace talweg::gpu::kernels
