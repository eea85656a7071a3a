// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_REDUCE_KERNEL_TABLE_H_
#define TALWEG_LIBS_REDUCE_KERNEL_TABLE_H_

#include <cstddef>
#include <cstdint>

// What reduce.cc and the translation units of the instruction sets (kernels_*.cc) agree on.
//
// Those units are compiled for processors that this one may not be. If the compiler emitted a
// header's inline function there, the linker might keep that copy for the whole program. Therefore
// this header and lane_*.h hold only types and templates that are tagged by an internal-linkage
// type, and include nothing that has code in it. kernel_symbols_test checks the object files.
namespace talweg::reduce::internal {

// How the inputs x0, x1, ... of one element become its output. Always from left to right.
enum class Combine : uint8_t {
  kSum,              // x0 + x1 + ...
  kSumTimes,         // (x0 + x1 + ...) * scale
  kSumOver,          // (x0 + x1 + ...) / scale
  kWeightedSumOver,  // (weights[0] * x0 + weights[1] * x1 + ...) / scale
  kMin,
  kMax,
  kProduct,  // x0 * x1 * ...
  kBitAnd,
  kBitOr,
  kBitXor,
  kScale,  // x0 * scale, see Scale in reduce.h. One input.
};
inline constexpr size_t kCombineCount = 11;

struct KernelArguments {
  const std::byte* const* inputs;
  size_t input_count;  // At least 1; at least 2 unless the operation scales or divides.
  std::byte* output;
  size_t bytes;          // Bytes of each input and of the output, in whole elements.
  const float* weights;  // input_count of them for kWeightedSumOver; otherwise unused.
  double scale;          // Rounded to the type that the kernel computes in.
  bool scale_is_small;   // scale is a whole number below 2^16.
  bool streaming;        // Use stores that go around the caches, if the instruction set has them.
};

using Kernel = void (*)(const KernelArguments& arguments);

inline constexpr size_t kDTypeCount = 13;

// Indexed by DType's value - 1, then by Combine. Null if the operation has no meaning.
struct KernelTable {
  Kernel kernels[kDTypeCount][kCombineCount];
};

extern const KernelTable kPortableKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif

}  // namespace talweg::reduce::internal

#endif  // TALWEG_LIBS_REDUCE_KERNEL_TABLE_H_
