// SPDX-License-Identifier: Apache-2.0
//
// Compiled with -mavx512f -mavx512bw -mavx512dq -mavx512vl; see kernel_table.h for what may stand
// here. The bfloat16 instructions of newer processors are not used: they flush denormals, and are
// no faster.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "libs/reduce/kernel_table.h"
#include "libs/reduce/lane_kernels.h"

namespace talweg::reduce::internal {
namespace {

struct Avx512 {
  static constexpr size_t kVectorBytes = 64;
  static constexpr bool kHasMultiplyAdd = true;
  static constexpr bool kJoinsWithMasks = true;
  static constexpr bool kHasStreaming = true;

  typedef float Floats __attribute__((vector_size(64)));
  typedef double Doubles __attribute__((vector_size(64)));
  typedef uint16_t HalfWords __attribute__((vector_size(32)));
  typedef int16_t HalfLanes __attribute__((vector_size(64)));
  typedef int32_t Words __attribute__((vector_size(64)));
  typedef int64_t Longs __attribute__((vector_size(64)));

  // Loads a value once that is used twice. Otherwise the compiler makes it a memory operand of both
  // uses.
  template <class V>
  static V InRegister(V v) {
    asm("" : "+v"(v));
    return v;
  }

  // Uses the zero-masked forms, with a mask of ones, because the plain ones warn of their undefined
  // operand.
  static constexpr __mmask16 kAll16 = 0xffff;
  static constexpr __mmask8 kAll8 = 0xff;

  static Floats FromFloat16(HalfWords halves) {
    return _mm512_maskz_cvtph_ps(kAll16, __builtin_bit_cast(__m256i, halves));
  }
  static HalfWords ToFloat16(Floats v) {
    return __builtin_bit_cast(
        HalfWords, _mm512_maskz_cvtps_ph(kAll16, v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  // Like BFloat16::Pack, but puts the upper halves of `first` into those of `second`.
  static HalfLanes ToBFloat16(Floats first, Floats second) {
    const __m512i a = __builtin_bit_cast(__m512i, first);
    const __m512i b = __builtin_bit_cast(__m512i, second);
    constexpr __mmask64 kLowerHalves = 0x3333333333333333;
    const __m512i down =
        _mm512_set_epi32(0x0f0e0f0e, 0x0b0a0b0a, 0x07060706, 0x03020302, 0x0f0e0f0e, 0x0b0a0b0a,
                         0x07060706, 0x03020302, 0x0f0e0f0e, 0x0b0a0b0a, 0x07060706, 0x03020302,
                         0x0f0e0f0e, 0x0b0a0b0a, 0x07060706, 0x03020302);
    const __m512i upper = _mm512_mask_shuffle_epi8(b, kLowerHalves, a, down);
    const __m512i up =
        _mm512_set_epi32(0x0d0c0d0c, 0x09080908, 0x05040504, 0x01000100, 0x0d0c0d0c, 0x09080908,
                         0x05040504, 0x01000100, 0x0d0c0d0c, 0x09080908, 0x05040504, 0x01000100,
                         0x0d0c0d0c, 0x09080908, 0x05040504, 0x01000100);
    const __m512i lower = _mm512_mask_shuffle_epi8(a, ~kLowerHalves, b, up);
    constexpr int kAOrBAndC = 0xf8;
    const __m512i beyond_half =
        _mm512_ternarylogic_epi32(lower, upper, _mm512_set1_epi16(1), kAOrBAndC);
    const __mmask32 goes_up = _mm512_cmpgt_epu16_mask(beyond_half, _mm512_set1_epi16(-0x8000));
    return __builtin_bit_cast(HalfLanes,
                              _mm512_mask_add_epi16(upper, goes_up, upper, _mm512_set1_epi16(1)));
  }

  static Floats MultiplyAdd(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Doubles MultiplyAdd(Doubles a, Doubles b, Doubles c) { return _mm512_fmadd_pd(a, b, c); }

  static bool AnyNan(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0; }
  static bool AnyLess(Words a, Words b) {
    return _mm512_cmplt_epi32_mask(__builtin_bit_cast(__m512i, a),
                                   __builtin_bit_cast(__m512i, b)) != 0;
  }
  static bool AnyLess(Longs a, Longs b) {
    return _mm512_cmplt_epi64_mask(__builtin_bit_cast(__m512i, a),
                                   __builtin_bit_cast(__m512i, b)) != 0;
  }

  // VRANGE orders the zeros. Its choice beside a NaN is not the one NaN, so it is replaced.
  static constexpr int kLesser = 0b0100;
  static constexpr int kGreater = 0b0101;
  static Floats Lesser(Floats a, Floats b) {
    return NanOr(a, b, _mm512_maskz_range_ps(kAll16, a, b, kLesser));
  }
  static Floats Greater(Floats a, Floats b) {
    return NanOr(a, b, _mm512_maskz_range_ps(kAll16, a, b, kGreater));
  }
  static Doubles Lesser(Doubles a, Doubles b) {
    return NanOr(a, b, _mm512_maskz_range_pd(kAll8, a, b, kLesser));
  }
  static Doubles Greater(Doubles a, Doubles b) {
    return NanOr(a, b, _mm512_maskz_range_pd(kAll8, a, b, kGreater));
  }
  static Floats NanOr(Floats a, Floats b, Floats otherwise) {
    return _mm512_mask_mov_ps(otherwise, _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q),
                              _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)));
  }
  static Doubles NanOr(Doubles a, Doubles b, Doubles otherwise) {
    return _mm512_mask_mov_pd(otherwise, _mm512_cmp_pd_mask(a, b, _CMP_UNORD_Q),
                              _mm512_castsi512_pd(_mm512_set1_epi64(0x7ff8000000000000)));
  }

  template <class V>
  static void Stream(std::byte* to, V v) {
    if constexpr (sizeof(V) == 64) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), __builtin_bit_cast(__m512i, v));
    } else {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to), __builtin_bit_cast(__m256i, v));
    }
  }
  static void FinishStreaming() { _mm_sfence(); }
};

}  // namespace

constinit const KernelTable kAvx512Kernels = LaneKernels<Avx512>::Table();

}  // namespace talweg::reduce::internal
