// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_REDUCE_LANE_ELEMENTS_H_
#define TALWEG_LIBS_REDUCE_LANE_ELEMENTS_H_

#include <cstddef>
#include <cstdint>

// What lane_kernels.h sums, in the vectors of an instruction set: `Isa`, as there.
namespace talweg::reduce::internal {

template <class Isa>
struct LaneElements {
  template <class T, size_t kBytes>
  struct VectorOf {
    typedef T Type __attribute__((vector_size(kBytes)));
  };
  template <class T>
  using Vector = typename VectorOf<T, Isa::kVectorBytes>::Type;
  // As many 16-bit lanes as Vector<float> has lanes.
  using HalfWords = typename VectorOf<uint16_t, Isa::kVectorBytes / 2>::Type;

  template <class V>
  static V LoadVector(const std::byte* from) {
    V v;
    __builtin_memcpy(&v, from, sizeof(v));  // Any alignment.
    return v;
  }

  // One bit pattern for every NaN. Which operand's payload survives an addition depends on the
  // order in which a compiler places two operands that it may swap.
  static Vector<float> OneNan(Vector<float> v) {
    const Vector<uint32_t> nan = Vector<uint32_t>{} + 0x7fc00000u;
    const auto is_nan = v != v;  // NOLINT(misc-redundant-expression): a NaN is not itself.
    return is_nan ? __builtin_bit_cast(Vector<float>, nan) : v;
  }
  static Vector<double> OneNan(Vector<double> v) {
    const Vector<uint64_t> nan = Vector<uint64_t>{} + uint64_t{0x7ff8000000000000};
    const auto is_nan = v != v;  // NOLINT(misc-redundant-expression): a NaN is not itself.
    return is_nan ? __builtin_bit_cast(Vector<double>, nan) : v;
  }
  template <class V>
  static V OneNan(V v) {
    return v;  // Integers.
  }

  // A vector of 16-bit floats becomes two vectors. One comparison shows that no lane of either is
  // NaN.
  struct FloatPair {
    Vector<float> first;
    Vector<float> second;

    friend FloatPair operator+(FloatPair a, FloatPair b) {
      return {a.first + b.first, a.second + b.second};
    }
    friend FloatPair operator*(FloatPair a, FloatPair b) {
      return {a.first * b.first, a.second * b.second};
    }
    template <class T>
    friend FloatPair operator*(FloatPair a, T b) {
      return {a.first * b, a.second * b};
    }
    friend FloatPair operator/(FloatPair a, float b) { return {a.first / b, a.second / b}; }
  };
  static FloatPair OneNan(FloatPair v) {
    if (__builtin_expect(Isa::AnyNan(v.first, v.second), false)) {
      return {OneNan(v.first), OneNan(v.second)};
    }
    return v;
  }

  // ----- Elements: how they lie in memory, and as which type they are summed. -----
  //
  // Pack rounds, and replaces every NaN by the one NaN; PackExact is for lanes that are elements
  // already.
  //
  // kUnroll: Lanes that are in work at the same time; four vectors hide the latency of an addition.
  // kTiny: whether a tiny sum must be divided with care (see LaneKernels::Quotient).

  template <class T>
  struct Plain {
    using Lane = T;
    using Lanes = Vector<T>;
    using Packed = Lanes;
    static constexpr size_t kElementBytes = sizeof(T);
    static constexpr size_t kUnroll = 4;
    static constexpr bool kTiny = true;
    static Lanes Load(const std::byte* from) { return LoadVector<Lanes>(from); }
    static Packed Pack(Lanes lanes) { return OneNan(lanes); }
    static Packed PackExact(Lanes lanes) { return lanes; }
  };

  struct Float16 {
    using Lane = float;
    using Lanes = FloatPair;
    struct Packed {
      HalfWords first;
      HalfWords second;
    };
    static constexpr size_t kElementBytes = 2;
    static constexpr size_t kUnroll = 2;
    static constexpr bool kTiny = false;  // A tiny result becomes 0.
    static Lanes Load(const std::byte* from) {
      return {Isa::FromFloat16(LoadVector<HalfWords>(from)),
              Isa::FromFloat16(LoadVector<HalfWords>(from + sizeof(HalfWords)))};
    }
    static Packed Pack(Lanes lanes) {
      const Lanes one_nan = OneNan(lanes);
      return {Isa::ToFloat16(one_nan.first), Isa::ToFloat16(one_nan.second)};
    }
  };

  // Two neighbours in memory are the halves of a 32-bit word, and a bfloat16 is the upper half of a
  // float. Therefore both are widened where they lie, and no lane has to move.
  struct BFloat16 {
    using Lane = float;
    using Lanes = FloatPair;
    using Packed = Vector<int16_t>;
    static constexpr size_t kElementBytes = 2;
    static constexpr size_t kUnroll = 4;
    static constexpr bool kTiny = true;
    static Lanes Load(const std::byte* from) {
      const auto packed = Isa::InRegister(LoadVector<Vector<uint32_t>>(from));
      return {__builtin_bit_cast(Vector<float>, packed << 16),
              __builtin_bit_cast(Vector<float>, packed & 0xffff0000u)};
    }
    // Rounds to nearest, ties to even: up if the lower half is more than half of the last place, or
    // is exactly half and the upper half is odd. A carry out of the fraction makes the next
    // exponent, or infinity. In signed numbers, a lower half of 0x8000 is 0.
    static Packed Pack(Lanes lanes) {
      const Lanes one_nan = OneNan(lanes);
      if constexpr (Isa::kJoinsWithMasks) {
        return Isa::ToBFloat16(one_nan.first, one_nan.second);
      }
      const auto first = __builtin_bit_cast(Vector<uint32_t>, one_nan.first);
      const auto second = __builtin_bit_cast(Vector<uint32_t>, one_nan.second);
      const auto upper = __builtin_bit_cast(Packed, (first >> 16) | (second & 0xffff0000u));
      const auto lower = __builtin_bit_cast(Packed, (first & 0xffffu) | (second << 16));
      const Packed beyond_half = (lower ^ kLowest16) | (upper & int16_t{1});
      return upper - (beyond_half > 0);  // True is -1.
    }
  };
  static constexpr int16_t kLowest16 = -0x8000;

  // Minima and maxima of 16-bit floats. As signed numbers they are in order once the magnitude of
  // negative ones is inverted: -0 comes before +0, and the NaNs lie outside the infinities. Both
  // ends are kept, to see whether there was a NaN.
  struct Ends {
    Vector<int16_t> least;
    Vector<int16_t> greatest;
  };
  template <int16_t kInfinity, int16_t kOneNan, bool kGreatest>
  struct Ordered16 {
    using Lanes = Ends;
    using Packed = Vector<int16_t>;
    static constexpr size_t kElementBytes = 2;
    static constexpr size_t kUnroll = 4;
    static Packed TurnOver(Packed packed) { return packed ^ ((packed >> 15) & int16_t{0x7fff}); }
    static Lanes Load(const std::byte* from) {
      const Packed ordered = TurnOver(Isa::InRegister(LoadVector<Packed>(from)));
      return {ordered, ordered};
    }
    static Packed PackExact(Lanes lanes) {
      const Packed nan = Packed{} + kOneNan;
      const Packed end = TurnOver(kGreatest ? lanes.greatest : lanes.least);
      const Packed none_above = lanes.greatest <= kInfinity ? end : nan;
      return lanes.least >= static_cast<int16_t>(~kInfinity) ? none_above : nan;
    }
  };
};

}  // namespace talweg::reduce::internal

#endif  // TALWEG_LIBS_REDUCE_LANE_ELEMENTS_H_
