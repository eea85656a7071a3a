// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_ENCODING_BLOCK_KERNELS_H_
#define TALWEG_LIBS_ENCODING_BLOCK_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "libs/encoding/block_table.h"

// The kernels of block_table.h, written once for all instruction sets over the compiler's vector
// types. `Isa`, a type with internal linkage, has their width. An element meets the same operations
// everywhere, so the bits are equal.
namespace talweg::encoding::internal {

template <class Isa>
struct BlockKernels {
  static constexpr size_t kLanes = Isa::kVectorBytes / sizeof(float);
  template <class T, size_t kBytes>
  struct VectorOf {
    typedef T Type __attribute__((vector_size(kBytes)));
  };
  using Floats = typename VectorOf<float, Isa::kVectorBytes>::Type;
  using Words = typename VectorOf<uint32_t, Isa::kVectorBytes>::Type;
  using Numbers = typename VectorOf<int32_t, Isa::kVectorBytes>::Type;
  using HalfWords = typename VectorOf<uint16_t, kLanes * sizeof(uint16_t)>::Type;
  using Bytes = typename VectorOf<int8_t, kLanes>::Type;

  template <class V>
  static V Load(const std::byte* from) {
    V v;
    __builtin_memcpy(&v, from, sizeof(v));  // Any alignment.
    return v;
  }
  template <class V>
  static void Store(std::byte* to, V v) {
    __builtin_memcpy(to, &v, sizeof(v));
  }

  static uint32_t Greatest(const std::byte* block) {
    Numbers greatest = {};
    for (size_t i = 0; i < kBlockFloats; i += kLanes) {
      const Numbers magnitude = Load<Numbers>(block + i * sizeof(float)) & 0x7fffffff;
      greatest = magnitude > greatest ? magnitude : greatest;
    }
    int32_t found = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      if (greatest[lane] > found) found = greatest[lane];
    }
    return static_cast<uint32_t>(found);
  }

  // A number of 16 random bits for each place. Two rounds of multiplying and shifting are enough
  // that the numbers of neighbours, and of neighbouring keys, show no pattern (rounding_test).
  static Words Drawn(Words places, uint32_t key) {
    Words drawn = places * 0x9e3779b1u ^ key;
    drawn = (drawn ^ drawn >> 16) * 0x85ebca6bu;
    drawn = (drawn ^ drawn >> 13) * 0xc2b2ae35u;
    return drawn >> 16;
  }

  // floor(x / scale + u), with u from 0 to just below 1. Sums below 256 have 16 binary places, as u
  // has, so x / scale + 128 is rounded by less than 2^-17, and nothing else is.
  static void Round(const std::byte* block, float inverse, uint32_t key, uint32_t first_place,
                    std::byte* out) {
    Words places;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      places[lane] = first_place + static_cast<uint32_t>(lane);
    }
    for (size_t i = 0; i < kBlockFloats; i += kLanes) {
      const auto drawn =
          __builtin_convertvector(__builtin_bit_cast(Numbers, Drawn(places, key)), Floats);
      const Floats scaled = Load<Floats>(block + i * sizeof(float)) * inverse + 128.0f;
      Numbers numbers = __builtin_convertvector(scaled + drawn * 0x1p-16f, Numbers) - 128;
      numbers = numbers > kLevels ? Numbers{} + kLevels : numbers;
      Store(out + i, __builtin_convertvector(numbers, Bytes));
      places += static_cast<uint32_t>(kLanes);
    }
  }

  static void Widen(const std::byte* bytes, float scale, std::byte* block) {
    for (size_t i = 0; i < kBlockFloats; i += kLanes) {
      const Floats floats =
          __builtin_convertvector(__builtin_convertvector(Load<Bytes>(bytes + i), Numbers), Floats);
      Store(block + i * sizeof(float), floats * scale);
    }
  }

  // To nearest, ties to even. A NaN stays one.
  static void ToBf16(const std::byte* block, std::byte* out) {
    for (size_t i = 0; i < kBlockFloats; i += kLanes) {
      const Words bits = Load<Words>(block + i * sizeof(float));
      const Words rounded = bits + 0x7fffu + (bits >> 16 & 1u);
      const Words chosen = (bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded;
      Store(out + i * sizeof(uint16_t), __builtin_convertvector(chosen >> 16, HalfWords));
    }
  }

  static void FromBf16(const std::byte* halves, std::byte* block) {
    for (size_t i = 0; i < kBlockFloats; i += kLanes) {
      const auto words =
          __builtin_convertvector(Load<HalfWords>(halves + i * sizeof(uint16_t)), Words);
      Store(block + i * sizeof(float), words << 16);
    }
  }

  static bool Match(const std::byte* block, const uint32_t* known, size_t count,
                    std::byte* places) {
    Numbers all_found = ~Numbers{};
    for (size_t i = 0; i < kBlockFloats; i += kLanes) {
      const Numbers words = Load<Numbers>(block + i * sizeof(uint32_t));
      Numbers found = {};
      Numbers place = {};
      for (size_t j = 0; j < count; ++j) {
        const Numbers is_this = words == static_cast<int32_t>(known[j]);
        found |= is_this;
        place |= is_this & static_cast<int32_t>(j);
      }
      all_found &= found;
      Store(places + i, __builtin_convertvector(place, Bytes));
    }
    for (size_t lane = 0; lane < kLanes; ++lane) {
      if (all_found[lane] == 0) return false;
    }
    return true;
  }

  static constexpr BlockTable Table() { return {Greatest, Round, Widen, ToBf16, FromBf16, Match}; }
};

}  // namespace talweg::encoding::internal

#endif  // TALWEG_LIBS_ENCODING_BLOCK_KERNELS_H_
