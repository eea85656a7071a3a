// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_REDUCE_ISA_H_
#define TALWEG_LIBS_REDUCE_ISA_H_

#include <cstdint>
#include <string_view>

namespace talweg::reduce {

// The instruction sets that have kernels. All give the same bits.
enum class Isa : uint8_t {
  kPortable,  // Any processor.
  kAvx2,      // AVX2, F16C and FMA.
  kAvx512,    // AVX-512 F, BW, DQ and VL.
};

inline constexpr Isa kAllIsas[] = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512};

// Whether this processor and its operating system can run the kernels of `isa`. Only the first call
// asks the processor; later calls cost a load.
bool IsSupported(Isa isa);

// The widest supported instruction set.
Isa BestIsa();

// "portable", "avx2", "avx512".
std::string_view IsaName(Isa isa);

}  // namespace talweg::reduce

#endif  // TALWEG_LIBS_REDUCE_ISA_H_
