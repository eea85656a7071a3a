// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_ENCODING_GAPS_H_
#define TALWEG_LIBS_ENCODING_GAPS_H_

#include <cstddef>
#include <span>

// The encoding `gaps`, for data of which most words are 0: codec.h has its bytes.
namespace talweg::encoding {

// Returns how many bytes of `out` the encoded bytes take. `out` has as much room as `plain`.
size_t EncodeGaps(std::span<const std::byte> plain, std::span<std::byte> out);

// Fills `plain`. Returns false if `encoded` is no encoding of so many bytes.
[[nodiscard]] bool DecodeGaps(std::span<const std::byte> encoded, std::span<std::byte> plain);

}  // namespace talweg::encoding

#endif  // TALWEG_LIBS_ENCODING_GAPS_H_
