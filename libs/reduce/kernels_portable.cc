// SPDX-License-Identifier: Apache-2.0
//
// For any processor: uses only the compiler's vector types (on x86-64 they become SSE2).
#include <cstddef>
#include <cstdint>

#include "libs/reduce/kernel_table.h"
#include "libs/reduce/lane_kernels.h"

namespace talweg::reduce::internal {
namespace {

struct Portable {
  static constexpr size_t kVectorBytes = 16;
  static constexpr bool kHasMultiplyAdd = false;
  static constexpr bool kJoinsWithMasks = false;
  static constexpr bool kHasStreaming = false;

  typedef float Floats __attribute__((vector_size(16)));
  typedef double Doubles __attribute__((vector_size(16)));
  typedef uint32_t Words __attribute__((vector_size(16)));
  typedef uint64_t Longs __attribute__((vector_size(16)));
  typedef uint16_t HalfWords __attribute__((vector_size(8)));

  template <class V>
  static V InRegister(V v) {
    return v;
  }

  static Words Bits(Floats v) { return __builtin_bit_cast(Words, v); }
  static Longs Bits(Doubles v) { return __builtin_bit_cast(Longs, v); }
  static Floats FromBits(Words v) { return __builtin_bit_cast(Floats, v); }
  static Doubles FromBits(Longs v) { return __builtin_bit_cast(Doubles, v); }

  // By shuffles: the compiler converts vectors of this size lane after lane.
  typedef uint16_t Halves __attribute__((vector_size(16)));
  static Words Widen(HalfWords halves) {
    const Halves low = __builtin_shufflevector(halves, halves, 0, 1, 2, 3, -1, -1, -1, -1);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return __builtin_bit_cast(Words,
                              __builtin_shufflevector(low, Halves{}, 0, 8, 1, 9, 2, 10, 3, 11));
#else
    return __builtin_bit_cast(Words,
                              __builtin_shufflevector(low, Halves{}, 8, 0, 9, 1, 10, 2, 11, 3));
#endif
  }
  static HalfWords Narrow(Words words) {
    const Halves halves = __builtin_bit_cast(Halves, words);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return __builtin_shufflevector(halves, halves, 0, 2, 4, 6);
#else
    return __builtin_shufflevector(halves, halves, 1, 3, 5, 7);
#endif
  }

  // binary16 has 5 bits of exponent (bias 15) and 10 of fraction; binary32 has 8 (127) and 23.
  static Floats FromFloat16(HalfWords halves) {
    const Words half = Widen(halves);
    const Words sign = (half & 0x8000u) << 16;
    const Words magnitude = (half & 0x7fffu) << 13;  // The fraction is in place.
    const Words normal = magnitude + ((127u - 15u) << 23);
    const Words not_finite = normal + ((255u - 127u - 16u) << 23);
    // A denormal has no leading one. Adds it, in the exponent of the smallest normal number, and
    // subtracts it again as a float.
    const Words leading = Words{} + ((127u - 14u) << 23);
    const Words denormal = Bits(FromBits(magnitude + leading) - FromBits(leading));
    const Words finite = magnitude < (1u << 23) ? denormal : normal;
    return FromBits(sign | (magnitude < (31u << 23) ? finite : not_finite));
  }

  static HalfWords ToFloat16(Floats v) {
    const Words bits = Bits(v);
    const Words sign = (bits >> 16) & 0x8000u;
    const Words magnitude = bits & 0x7fffffffu;
    // Rounds to nearest, ties to even. A carry makes the next exponent, and infinity from 65520 on.
    const Words normal =
        (magnitude - ((127u - 15u) << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // Below 2^-14, adding 0.5 moves the fraction to where binary16 has it, and rounds it.
    const Words half = Words{} + (126u << 23);
    const Words denormal = Bits(FromBits(magnitude) + FromBits(half)) - half;
    const Words finite = magnitude < ((127u - 14u) << 23) ? denormal : normal;
    const Words not_finite = (magnitude > (255u << 23) ? Words{} + 0x7e00u : Words{} + 0x7c00u);
    return Narrow(sign | (magnitude < ((127u + 16u) << 23) ? finite : not_finite));
  }

  static bool AnyNan(Floats a, Floats b) {
    // NOLINTNEXTLINE(misc-redundant-expression): a NaN is not itself.
    const Longs unordered = __builtin_bit_cast(Longs, (a != a) | (b != b));
    return (unordered[0] | unordered[1]) != 0;
  }

  // Two answers that differ only for zeros of two signs: OR has the sign of -0, AND that of +0.
  template <class V>
  static V Lesser(V a, V b) {
    return NanOr(a, b, FromBits(Bits(a < b ? a : b) | Bits(b < a ? b : a)));
  }
  template <class V>
  static V Greater(V a, V b) {
    return NanOr(a, b, FromBits(Bits(a > b ? a : b) & Bits(b > a ? b : a)));
  }
  static Floats NanOr(Floats a, Floats b, Floats otherwise) {
    // NOLINTNEXTLINE(misc-redundant-expression): a NaN is not itself.
    const auto unordered = (a != a) | (b != b);
    return unordered ? FromBits(Words{} + 0x7fc00000u) : otherwise;
  }
  static Doubles NanOr(Doubles a, Doubles b, Doubles otherwise) {
    // NOLINTNEXTLINE(misc-redundant-expression): a NaN is not itself.
    const auto unordered = (a != a) | (b != b);
    return unordered ? FromBits(Longs{} + uint64_t{0x7ff8000000000000}) : otherwise;
  }
};

}  // namespace

constinit const KernelTable kPortableKernels = LaneKernels<Portable>::Table();

}  // namespace talweg::reduce::internal
