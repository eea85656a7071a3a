// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_COMPRESS_KERNEL_TABLE_H_
#define TALWEG_LIBS_COMPRESS_KERNEL_TABLE_H_

#include <cstdint>

#include "libs/compress/compress.h"

// What compress.cc and the translation units of the instruction sets (kernels_*.cc) agree on. Those
// units are compiled for processors that this one may not be, so only types and templates that are
// tagged by an internal-linkage type may stand here and in kernels.h (libs/reduce/kernel_table.h
// says why).
namespace talweg::compress::internal {

// One partition.
struct Part {
  float* values = nullptr;
  float* error = nullptr;  // Or null, as in Memory.
  float* momentum = nullptr;
  uint64_t count = 0;  // At least 1.
  uint64_t first = 0;  // Its first element's place in the tensor.
};

// Reads the factors of `memory` alone.
using Kernel = void (*)(const Spec& spec, const Part& part, const Memory& memory);

struct KernelTable {
  Kernel top_k;
  Kernel random_k;
  Kernel one_bit;
  Kernel dither;
};

extern const KernelTable kPortableKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif

}  // namespace talweg::compress::internal

#endif  // TALWEG_LIBS_COMPRESS_KERNEL_TABLE_H_
