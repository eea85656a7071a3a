// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_REDUCE_SCALAR_REFERENCE_H_
#define TALWEG_LIBS_REDUCE_SCALAR_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "libs/base/dtype.h"

// The rules of docs/arithmetic.md again, one element at a time and by other means than the kernels:
// 16-bit numbers are decoded and rounded by their definition (sign, exponent, fraction as real
// numbers), and integers are reduced modulo a power of two.
namespace talweg::reduce::testing {

// A 16-bit floating-point format.
struct Format16 {
  int fraction_bits;
  int exponent_bits;
};
inline constexpr Format16 kBinary16 = {.fraction_bits = 10, .exponent_bits = 5};
inline constexpr Format16 kBFloat16 = {.fraction_bits = 7, .exponent_bits = 8};

float Decode(Format16 format, uint16_t bits);
// Rounds to nearest, ties to even; every NaN becomes the quiet NaN without sign or payload.
uint16_t Encode(Format16 format, float value);

// Returns an element's bits, in the low bytes. `weights`: empty, or one for each input.
uint64_t ReduceElement(DType dtype, Op op, const std::vector<uint64_t>& inputs,
                       const std::vector<float>& weights, uint32_t divisor);

// As Scale, for a factor other than 1.
uint64_t ScaleElement(DType dtype, double factor, uint64_t bits);

}  // namespace talweg::reduce::testing

#endif  // TALWEG_LIBS_REDUCE_SCALAR_REFERENCE_H_
