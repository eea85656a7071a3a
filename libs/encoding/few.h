// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_ENCODING_FEW_H_
#define TALWEG_LIBS_ENCODING_FEW_H_

#include <cstddef>
#include <cstdint>
#include <span>

// The encoding `few`, for f32 numbers of which many are equal: codec.h has its bytes.
namespace talweg::encoding {

// Returns how many bytes of `out` the encoded bytes take. `out` has as much room as `plain`. Equal
// seeds give equal bytes.
size_t EncodeFew(std::span<const std::byte> plain, uint64_t seed, std::span<std::byte> out);

// Fills `plain`. Returns false if `encoded` is no encoding of so many bytes.
[[nodiscard]] bool DecodeFew(std::span<const std::byte> encoded, std::span<std::byte> plain);

}  // namespace talweg::encoding

#endif  // TALWEG_LIBS_ENCODING_FEW_H_
