// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_KERNELS_REDUCE_ARGUMENTS_H_
#define TALWEG_LIBS_GPU_KERNELS_REDUCE_ARGUMENTS_H_

#include <cstdint>

// The arguments of the kernels. nvcc compiles this, too, as C++17.
namespace talweg::gpu::kernels {

// How the inputs x0, x1, ... of one element become its output. Always from the left.
enum class Combine : uint8_t {
  kSum,       // x0 + x1 + ...
  kSumTimes,  // (x0 + x1 + ...) * scale
  kSumOver,   // (x0 + x1 + ...) / scale
  kMin,
  kMax,
  kProduct,  // x0 * x1 * ...
  kBitAnd,
  kBitOr,
  kBitXor,
};
inline constexpr uint32_t kCombineCount = 9;

inline constexpr uint32_t kInputsMax = 32;
inline constexpr uint32_t kOutputsMax = kInputsMax;
// The bytes that a thread loads at once.
inline constexpr uint32_t kVectorBytes = 16;
// The threads of a block, for which the kernels are compiled.
inline constexpr uint32_t kBlockThreads = 256;

// The elements are a `head` before the first vector, the vectors, and a tail. Without vectors all
// are head. Vectors lie at multiples of kVectorBytes in every buffer.
struct ReduceArguments {
  uint64_t inputs[kInputsMax];
  uint64_t outputs[kOutputsMax];
  uint64_t element_count;
  uint64_t head;
  uint64_t vectors;
  double scale;  // Rounded to the type in which elements are combined.
  uint32_t input_count;
  uint32_t output_count;
};

}  // namespace talweg::gpu::kernels

#endif  // TALWEG_LIBS_GPU_KERNELS_REDUCE_ARGUMENTS_H_
