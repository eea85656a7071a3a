// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_ENCODING_RUNS_H_
#define TALWEG_LIBS_ENCODING_RUNS_H_

#include <cstddef>
#include <span>

// The encoding `runs`: codec.h has its bytes.
namespace talweg::encoding {

// Returns how many bytes of `out` the encoded bytes take. `out` has as much room as `plain`.
size_t EncodeRuns(std::span<const std::byte> plain, std::span<std::byte> out);

// Fills `plain`. Returns false if `encoded` is no encoding of so many bytes.
[[nodiscard]] bool DecodeRuns(std::span<const std::byte> encoded, std::span<std::byte> plain);

}  // namespace talweg::encoding

#endif  // TALWEG_LIBS_ENCODING_RUNS_H_
