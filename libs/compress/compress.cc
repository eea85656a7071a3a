// SPDX-License-Identifier: Apache-2.0
#include "libs/compress/compress.h"

#include "libs/base/check.h"
#include "libs/compress/kernel_table.h"

namespace talweg::compress {
namespace {

using internal::Kernel;
using internal::KernelTable;

const KernelTable& TableOf(reduce::Isa isa) {
  TALWEG_CHECK(reduce::IsSupported(isa));
  switch (isa) {
#if defined(__x86_64__)
    case reduce::Isa::kAvx2: return internal::kAvx2Kernels;
    case reduce::Isa::kAvx512: return internal::kAvx512Kernels;
#else
    case reduce::Isa::kAvx2:
    case reduce::Isa::kAvx512:
#endif
    case reduce::Isa::kPortable: break;
  }
  return internal::kPortableKernels;
}

Kernel KernelOf(Kind kind, const KernelTable& table) {
  switch (kind) {
    case Kind::kTopK: return table.top_k;
    case Kind::kRandomK: return table.random_k;
    case Kind::kOneBit: return table.one_bit;
    case Kind::kDithering: return table.dither;
  }
  return nullptr;
}

}  // namespace

bool IsValid(const Spec& spec) {
  switch (spec.kind) {
    case Kind::kTopK:
    case Kind::kRandomK: return spec.k > 0 && spec.k <= 0x1p53;
    case Kind::kOneBit: return true;
    case Kind::kDithering:
      return spec.k >= 1 && spec.k <= (spec.natural ? kNaturalLevelsMax : kLevelsMax) &&
             spec.k == static_cast<double>(static_cast<uint32_t>(spec.k));
  }
  return false;
}

void Compress(const Spec& spec, float* values, uint64_t count, const Memory& memory,
              reduce::Isa isa) {
  const Kernel kernel = KernelOf(spec.kind, TableOf(isa));
  TALWEG_CHECK(kernel != nullptr);
  const uint64_t partition = spec.partition == 0 ? count : spec.partition;
  for (uint64_t first = 0; first < count;) {
    const uint64_t left = count - first;
    const internal::Part part = {
        .values = values + first,
        .error = memory.error == nullptr ? nullptr : memory.error + first,
        .momentum = memory.momentum == nullptr ? nullptr : memory.momentum + first,
        .count = left < partition ? left : partition,
        .first = first,
    };
    kernel(spec, part, memory);
    first += part.count;
  }
}

}  // namespace talweg::compress
