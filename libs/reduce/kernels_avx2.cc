// SPDX-License-Identifier: Apache-2.0
//
// Compiled with -mavx2 -mf16c -mfma; see kernel_table.h for what may stand here.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/reduce/kernel_table.h"
#include "libs/reduce/lane_kernels.h"

namespace talweg::reduce::internal {
namespace {

struct Avx2 {
  static constexpr size_t kVectorBytes = 32;
  static constexpr bool kHasMultiplyAdd = true;
  static constexpr bool kJoinsWithMasks = false;
  static constexpr bool kHasStreaming = true;

  typedef float Floats __attribute__((vector_size(32)));
  typedef double Doubles __attribute__((vector_size(32)));
  typedef uint16_t HalfWords __attribute__((vector_size(16)));
  typedef int32_t Words __attribute__((vector_size(32)));
  typedef int64_t Longs __attribute__((vector_size(32)));

  // Loads a value once that is used twice. Otherwise the compiler makes it a memory operand of both
  // uses.
  template <class V>
  static V InRegister(V v) {
    asm("" : "+x"(v));
    return v;
  }

  static Floats FromFloat16(HalfWords halves) {
    return _mm256_cvtph_ps(__builtin_bit_cast(__m128i, halves));
  }
  static HalfWords ToFloat16(Floats v) {
    return __builtin_bit_cast(HalfWords,
                              _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  static Floats MultiplyAdd(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static Doubles MultiplyAdd(Doubles a, Doubles b, Doubles c) { return _mm256_fmadd_pd(a, b, c); }

  static bool AnyNan(Floats a, Floats b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0;
  }
  static bool AnyLess(Words a, Words b) {
    return _mm256_movemask_ps(__builtin_bit_cast(__m256, a < b)) != 0;
  }
  static bool AnyLess(Longs a, Longs b) {
    return _mm256_movemask_pd(__builtin_bit_cast(__m256d, a < b)) != 0;
  }

  // MINPS and MAXPS give their second operand for two zeros. Asked both ways, the two answers
  // differ only for zeros of two signs. There the wanted sign bit is their OR or their AND.
  static Floats Lesser(Floats a, Floats b) {
    return NanOr(a, b, _mm256_or_ps(_mm256_min_ps(a, b), _mm256_min_ps(b, a)));
  }
  static Floats Greater(Floats a, Floats b) {
    return NanOr(a, b, _mm256_and_ps(_mm256_max_ps(a, b), _mm256_max_ps(b, a)));
  }
  static Doubles Lesser(Doubles a, Doubles b) {
    return NanOr(a, b, _mm256_or_pd(_mm256_min_pd(a, b), _mm256_min_pd(b, a)));
  }
  static Doubles Greater(Doubles a, Doubles b) {
    return NanOr(a, b, _mm256_and_pd(_mm256_max_pd(a, b), _mm256_max_pd(b, a)));
  }
  static Floats NanOr(Floats a, Floats b, Floats otherwise) {
    return _mm256_blendv_ps(otherwise, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)),
                            _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
  }
  static Doubles NanOr(Doubles a, Doubles b, Doubles otherwise) {
    return _mm256_blendv_pd(otherwise, _mm256_castsi256_pd(_mm256_set1_epi64x(0x7ff8000000000000)),
                            _mm256_cmp_pd(a, b, _CMP_UNORD_Q));
  }

  template <class V>
  static void Stream(std::byte* to, V v) {
    if constexpr (sizeof(V) == 32) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to), __builtin_bit_cast(__m256i, v));
    } else {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to), __builtin_bit_cast(__m128i, v));
    }
  }
  static void FinishStreaming() { _mm_sfence(); }
};

}  // namespace

constinit const KernelTable kAvx2Kernels = LaneKernels<Avx2>::Table();

}  // namespace talweg::reduce::internal
