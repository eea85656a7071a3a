// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_ENCODING_ROUNDING_H_
#define TALWEG_LIBS_ENCODING_ROUNDING_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "libs/reduce/isa.h"

// The encodings that round, over the f32 numbers of one slice: codec.h has their bytes. The bits
// are those of every instruction set. `out` has as much room as `plain`.
namespace talweg::encoding {

// Returns how many bytes of `out` the encoded bytes take.
size_t EncodeBf16(std::span<const std::byte> plain, std::span<std::byte> out,
                  reduce::Isa isa = reduce::BestIsa());
// Equal seeds give equal bytes.
size_t EncodeInt8(std::span<const std::byte> plain, uint64_t seed, std::span<std::byte> out,
                  reduce::Isa isa = reduce::BestIsa());

// Fill `plain`. Return false if `encoded` is no encoding of so many bytes.
[[nodiscard]] bool DecodeBf16(std::span<const std::byte> encoded, std::span<std::byte> plain,
                              reduce::Isa isa = reduce::BestIsa());
[[nodiscard]] bool DecodeInt8(std::span<const std::byte> encoded, std::span<std::byte> plain,
                              reduce::Isa isa = reduce::BestIsa());

}  // namespace talweg::encoding

#endif  // TALWEG_LIBS_ENCODING_ROUNDING_H_
