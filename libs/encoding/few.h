// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_ENCODING_FEW_H_
#define TALWEG_LIBS_ENCODING_FEW_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "libs/reduce/isa.h"

// The encoding `few`, for f32 numbers of which many are equal: codec.h has its bytes. The
// bits are those of every instruction set.
namespace talweg::encoding {

// Returns how many bytes of `out` the encoded bytes take. `out` has as much room as `plain`. Equal
// seeds give equal bytes.
size_t EncodeFew(std::span<const std::byte> plain, uint64_t seed, std::span<std::byte> out,
                 reduce::Isa isa = reduce::BestIsa());

// Fills `plain`. Returns false if `encoded` is no encoding of so many bytes.
[[nodiscard]] bool DecodeFew(std::span<const std::byte> encoded, std::span<std::byte> plain,
                             reduce::Isa isa = reduce::BestIsa());

}  // namespace talweg::encoding

#endif  // TALWEG_LIBS_ENCODING_FEW_H_
