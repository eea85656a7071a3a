// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_REDUCE_LANE_KERNELS_H_
#define TALWEG_LIBS_REDUCE_LANE_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "libs/reduce/kernel_table.h"
#include "libs/reduce/lane_elements.h"

// The kernels, written once for all instruction sets.
//
// They use the compiler's vector types: `+` on a vector is one addition for each lane, rounded as
// in IEEE 754, whatever the width. `Isa`, a type with internal linkage, has the differences:
// kVectorBytes, the conversions of float16, minimum and maximum of floating point, fused
// multiply-add, whether any lane is NaN or less than another, and stores around the caches. An
// element meets the same operations in the same order in every lane, block and rest, and on every
// instruction set. Therefore the bits are equal.
namespace talweg::reduce::internal {

// The constants of a floating-point lane for LaneKernels::Quotient.
template <class T>
struct LaneTraits;
template <>
struct LaneTraits<float> {
  using Bits = uint32_t;
  using SignedBits = int32_t;
  static constexpr Bits kTinyBelow = Bits{64} << 23;  // 2^-63
};
template <>
struct LaneTraits<double> {
  using Bits = uint64_t;
  using SignedBits = int64_t;
  static constexpr Bits kTinyBelow = Bits{256} << 52;  // 2^-767
};

// 32 bits, with or without a sign.
template <bool kUnsigned>
struct WordOf {
  using Type = int32_t;
};
template <>
struct WordOf<true> {
  using Type = uint32_t;
};

template <class Isa>
struct LaneKernels {
  using Elements = LaneElements<Isa>;
  template <class T>
  using Vector = typename Elements::template Vector<T>;
  template <class T>
  using Plain = typename Elements::template Plain<T>;
  using FloatPair = typename Elements::FloatPair;
  using Float16 = typename Elements::Float16;
  using BFloat16 = typename Elements::BFloat16;
  using Ends = typename Elements::Ends;
  template <bool kGreatest>
  using OrderedFloat16 = typename Elements::template Ordered16<0x7c00, 0x7e00, kGreatest>;
  template <bool kGreatest>
  using OrderedBFloat16 = typename Elements::template Ordered16<0x7f80, 0x7fc0, kGreatest>;

  // ----- Averages. -----

  // x / divisor, rounded once. If divisor is a whole number below 2^16 there is no division, which
  // would take longer than all else.
  //
  // inverse + rest is 1 / divisor to twice the lane's precision. Therefore what the fused
  // multiply-add rounds is less than 2^-20 of a last place off (for a float; less for a double). A
  // quotient by such a number is no tie, and at least 2^-17 of a last place away from one.
  // Therefore both round to the same number. inverse is less than 1 / divisor, so rest is greater
  // than 0, which gives zeros and infinities their sign.
  //
  // None of that holds if a product with rest is denormal: a vector with a tiny number is divided.
  template <class T>
  struct Quotient {
    using Bits = typename LaneTraits<T>::Bits;
    using SignedBits = typename LaneTraits<T>::SignedBits;

    explicit Quotient(const KernelArguments& arguments)
        : divisor(static_cast<T>(arguments.scale)), is_small(arguments.scale_is_small) {
      if constexpr (Isa::kHasMultiplyAdd) {
        const auto above = __builtin_bit_cast(Vector<Bits>, Vector<T>{} + 1 / divisor);
        inverse = __builtin_bit_cast(Vector<T>, above - 1);
        rest = Isa::MultiplyAdd(-inverse, Vector<T>{} + divisor, Vector<T>{} + 1) / divisor;
      }
    }

    template <bool kTiny, class Lanes>
    Lanes Of(Lanes x) const {
      if constexpr (Isa::kHasMultiplyAdd) {
        if (__builtin_expect(is_small && !(kTiny && AnyTiny(x)), true)) {
          return MultiplyAdd(x, inverse, x * rest);
        }
      }
      return x / divisor;
    }

    // Tests 0 < 2 |x| < limit in one comparison. All numbers are moved down by 1, so that 0 is the
    // greatest, and by half the range, so that signed numbers can be compared.
    static constexpr Bits kLowest = Bits{1} << (sizeof(Bits) * 8 - 1);
    static constexpr Bits kLimit = 2 * LaneTraits<T>::kTinyBelow - 1 - kLowest;
    static Vector<SignedBits> Moved(Vector<T> x) {
      const auto bits = __builtin_bit_cast(Vector<Bits>, x);
      return __builtin_bit_cast(Vector<SignedBits>, bits + bits - 1 - kLowest);
    }
    static bool AnyBelowLimit(Vector<SignedBits> moved) {
      return Isa::AnyLess(moved, __builtin_bit_cast(Vector<SignedBits>, Vector<Bits>{} + kLimit));
    }
    static bool AnyTiny(Vector<T> x) { return AnyBelowLimit(Moved(x)); }
    static bool AnyTiny(FloatPair x) {
      return AnyBelowLimit(LaneKernels::Lesser(Moved(x.first), Moved(x.second)));
    }

    T divisor;
    bool is_small;
    Vector<T> inverse;
    Vector<T> rest;
  };

  template <class V>
  static V MultiplyAdd(V a, V b, V c) {
    return Isa::MultiplyAdd(a, b, c);
  }
  static FloatPair MultiplyAdd(FloatPair a, Vector<float> b, FloatPair c) {
    return {Isa::MultiplyAdd(a.first, b, c.first), Isa::MultiplyAdd(a.second, b, c.second)};
  }

  // ----- Operations: First for x0, Next for all others, Last before the result is packed. -----
  //
  // kExact: the result is one of the inputs, or the one NaN.

  template <class E>
  struct Sum {
    using Lanes = typename E::Lanes;
    static constexpr bool kExact = false;
    explicit Sum(const KernelArguments&) {}
    Lanes First(Lanes x) const { return x; }
    Lanes Next(Lanes sum, Lanes x, size_t) const { return sum + x; }
    Lanes Last(Lanes sum) const { return sum; }
  };

  template <class E>
  struct SumTimes : Sum<E> {
    using Lanes = typename E::Lanes;
    explicit SumTimes(const KernelArguments& arguments)
        : Sum<E>(arguments), factor(static_cast<typename E::Lane>(arguments.scale)) {}
    Lanes Last(Lanes sum) const { return sum * factor; }
    typename E::Lane factor;
  };

  template <class E>
  struct SumOver : Sum<E> {
    using Lanes = typename E::Lanes;
    explicit SumOver(const KernelArguments& arguments) : Sum<E>(arguments), quotient(arguments) {}
    Lanes Last(Lanes sum) const { return quotient.template Of<E::kTiny>(sum); }
    Quotient<typename E::Lane> quotient;
  };

  // Each product and each sum is rounded. The build forbids their contraction into a fused
  // multiply-add, which not every instruction set has.
  template <class E>
  struct WeightedSumOver : SumOver<E> {
    using Lanes = typename E::Lanes;
    using Lane = typename E::Lane;
    explicit WeightedSumOver(const KernelArguments& arguments)
        : SumOver<E>(arguments), weights(arguments.weights) {}
    Lanes First(Lanes x) const { return x * static_cast<Lane>(weights[0]); }
    Lanes Next(Lanes sum, Lanes x, size_t input) const {
      return sum + x * static_cast<Lane>(weights[input]);
    }
    const float* weights;
  };

  template <class E>
  struct Product {
    using Lanes = typename E::Lanes;
    static constexpr bool kExact = false;
    explicit Product(const KernelArguments&) {}
    Lanes First(Lanes x) const { return x; }
    Lanes Next(Lanes product, Lanes x, size_t) const { return Times(product, x); }
    Lanes Last(Lanes product) const { return product; }
  };

  template <class V>
  static V Times(V a, V b) {
    return a * b;
  }
  // No instruction set multiplies bytes. A byte of a product needs no byte above its own, so the
  // products of the 16-bit lanes give the even bytes. They also give the odd ones, if one factor is
  // shifted down and the other is not.
  static Vector<uint8_t> Times(Vector<uint8_t> a, Vector<uint8_t> b) {
    using Pairs = Vector<uint16_t>;
    const Pairs pairs_a = __builtin_bit_cast(Pairs, a);
    const Pairs pairs_b = __builtin_bit_cast(Pairs, b);
    const Pairs even = pairs_a * pairs_b;
    const Pairs odd = (pairs_a >> 8) * (pairs_b & uint16_t{0xff00});
    return __builtin_bit_cast(Vector<uint8_t>, (even & uint16_t{0xff}) | odd);
  }

  template <class E>
  struct Min {
    using Lanes = typename E::Lanes;
    static constexpr bool kExact = true;
    explicit Min(const KernelArguments&) {}
    Lanes First(Lanes x) const { return x; }
    Lanes Next(Lanes least, Lanes x, size_t) const { return Lesser(least, x); }
    Lanes Last(Lanes least) const { return least; }
  };

  template <class E>
  struct Max {
    using Lanes = typename E::Lanes;
    static constexpr bool kExact = true;
    explicit Max(const KernelArguments&) {}
    Lanes First(Lanes x) const { return x; }
    Lanes Next(Lanes greatest, Lanes x, size_t) const { return Greater(greatest, x); }
    Lanes Last(Lanes greatest) const { return greatest; }
  };

  template <class E>
  struct Bits {
    using Lanes = typename E::Lanes;
    static constexpr bool kExact = true;
    explicit Bits(const KernelArguments&) {}
    Lanes First(Lanes x) const { return x; }
    Lanes Last(Lanes bits) const { return bits; }
  };
  template <class E>
  struct BitAnd : Bits<E> {
    using Lanes = typename E::Lanes;
    using Bits<E>::Bits;
    Lanes Next(Lanes bits, Lanes x, size_t) const { return bits & x; }
  };
  template <class E>
  struct BitOr : Bits<E> {
    using Lanes = typename E::Lanes;
    using Bits<E>::Bits;
    Lanes Next(Lanes bits, Lanes x, size_t) const { return bits | x; }
  };
  template <class E>
  struct BitXor : Bits<E> {
    using Lanes = typename E::Lanes;
    using Bits<E>::Bits;
    Lanes Next(Lanes bits, Lanes x, size_t) const { return bits ^ x; }
  };

  // Isa::Lesser and Isa::Greater: a NaN on either side gives the one NaN, and -0 is less than +0.
  static Vector<float> Lesser(Vector<float> a, Vector<float> b) { return Isa::Lesser(a, b); }
  static Vector<double> Lesser(Vector<double> a, Vector<double> b) { return Isa::Lesser(a, b); }
  static Vector<float> Greater(Vector<float> a, Vector<float> b) { return Isa::Greater(a, b); }
  static Vector<double> Greater(Vector<double> a, Vector<double> b) { return Isa::Greater(a, b); }
  static Ends Lesser(Ends a, Ends b) {
    return {Lesser(a.least, b.least), Greater(a.greatest, b.greatest)};
  }
  static Ends Greater(Ends a, Ends b) { return Lesser(a, b); }
  template <class V>
  static V Lesser(V a, V b) {
    return a < b ? a : b;  // Integers.
  }
  template <class V>
  static V Greater(V a, V b) {
    return a > b ? a : b;
  }

  // Stores around the caches if `streaming`.
  template <class Packed>
  static void Store(std::byte* to, Packed packed, bool streaming) {
    if constexpr (Isa::kHasStreaming) {
      if (streaming) {
        Isa::Stream(to, packed);
        return;
      }
    }
    __builtin_memcpy(to, &packed, sizeof(packed));
  }
  // Two stores, because one store would need both put into one vector first.
  static void Store(std::byte* to, typename Float16::Packed packed, bool streaming) {
    Store(to, packed.first, streaming);
    Store(to + sizeof(packed.first), packed.second, streaming);
  }

  // ----- One kernel: the elements E under the operation O. -----

  template <class E, class O>
  struct Loop {
    using Lanes = typename E::Lanes;
    using Packed = typename E::Packed;
    static constexpr size_t kStride = sizeof(Packed);
    static constexpr size_t kUnroll = E::kUnroll;
    static constexpr size_t kBlockBytes = kStride * kUnroll;
    static constexpr size_t kTurn = 4;  // How many inputs are read side by side; see Blocks.
    static constexpr size_t kTileBlocks = 4096 / kBlockBytes;
    static constexpr size_t kTileBytes = kTileBlocks * kBlockBytes;

    static void Run(const KernelArguments& arguments) {
      const size_t end = arguments.bytes;
      size_t at = 0;
      if constexpr (Isa::kHasStreaming) {
        // A streaming store needs alignment, which misaligned elements never reach.
        const uintptr_t address = reinterpret_cast<uintptr_t>(arguments.output);
        const size_t head = -address % Isa::kVectorBytes;
        if (arguments.streaming && address % E::kElementBytes == 0 && head < end) {
          Rest(arguments, 0, head);
          at = Blocks(arguments, head, end, true);
          Isa::FinishStreaming();
          Rest(arguments, at, end);
          return;
        }
      }
      at = Blocks(arguments, 0, end, false);
      Rest(arguments, at, end);
    }

    // Sums whole blocks from byte `begin` on, and returns the first byte that it left.
    //
    // Processors prefetch by what each load instruction has loaded before, and for some streams at
    // a time, not for dozens. Therefore up to kTurn inputs are read side by side, each by its own
    // instructions. More inputs are summed a tile at a time, in turns.
    static size_t Blocks(const KernelArguments& arguments, size_t begin, size_t end,
                         bool streaming) {
      const Work work = {arguments, O(arguments), streaming};
      end -= (end - begin) % kBlockBytes;
      switch (arguments.input_count) {
        case 1: Turn<1, true, true>(work, 0, begin, end, nullptr); break;
        case 2: Turn<2, true, true>(work, 0, begin, end, nullptr); break;
        case 3: Turn<3, true, true>(work, 0, begin, end, nullptr); break;
        case 4: Turn<4, true, true>(work, 0, begin, end, nullptr); break;
        default: Tiles(work, begin, end);
      }
      return end;
    }

    struct Work {
      const KernelArguments& arguments;
      O operation;
      bool streaming;
    };

    static void Tiles(const Work& work, size_t begin, size_t end) {
      static_assert(kTurn == 4, "the cases here and in Blocks are 1 to kTurn");
      const size_t count = work.arguments.input_count;
      Lanes held[kTileBlocks][kUnroll];  // In L1, from one turn to the next.
      for (size_t tile = begin; tile < end; tile += kTileBytes) {
        const size_t tile_end = end - tile < kTileBytes ? end : tile + kTileBytes;
        // Takes a first turn of such a size that whole turns are left.
        size_t input = (count - 1) % kTurn + 1;
        switch (input) {
          case 1: Turn<1, true, false>(work, 0, tile, tile_end, held); break;
          case 2: Turn<2, true, false>(work, 0, tile, tile_end, held); break;
          case 3: Turn<3, true, false>(work, 0, tile, tile_end, held); break;
          case 4: Turn<4, true, false>(work, 0, tile, tile_end, held); break;
        }
        for (; count - input > kTurn; input += kTurn) {
          Turn<kTurn, false, false>(work, input, tile, tile_end, held);
        }
        Turn<kTurn, false, true>(work, input, tile, tile_end, held);
      }
    }

    // Sums kCount inputs from `input` on, over the blocks from byte `begin` to `end`. kFirst: no
    // sums are held yet. kLast: the sums are stored. All inputs of a block are read before its
    // output is written, so the output may lie over an input.
    template <size_t kCount, bool kFirst, bool kLast>
    static void Turn(const Work& work, size_t input, size_t begin, size_t end,
                     Lanes (*held)[kUnroll]) {
      // In registers, so that stores to the output cannot change them.
      const O operation = work.operation;
      const bool streaming = work.streaming;
      const std::byte* inputs[kCount];
      for (size_t i = 0; i < kCount; ++i) inputs[i] = work.arguments.inputs[input + i];
      std::byte* const output = work.arguments.output;

      for (size_t at = begin; at < end; at += kBlockBytes) {
        Lanes lanes[kUnroll];
        if constexpr (kFirst) {
          First(operation, inputs[0] + at, lanes);
        } else {
          Copy(*held, lanes);
          Next(operation, inputs[0] + at, input, lanes);
        }
#pragma GCC unroll 4
        for (size_t i = 1; i < kCount; ++i) Next(operation, inputs[i] + at, input + i, lanes);
        if constexpr (!kLast) {
          Copy(lanes, *held);
        } else {
          Finish(operation, lanes, output + at, streaming);
        }
        if constexpr (!kFirst || !kLast) ++held;
      }
    }

    // The steps of a block are inlined, so that its lanes stay in registers.
    [[gnu::always_inline]] static void First(const O& operation, const std::byte* from,
                                             Lanes (&lanes)[kUnroll]) {
#pragma GCC unroll 4
      for (size_t u = 0; u < kUnroll; ++u) lanes[u] = operation.First(E::Load(from + u * kStride));
    }
    [[gnu::always_inline]] static void Next(const O& operation, const std::byte* from, size_t input,
                                            Lanes (&lanes)[kUnroll]) {
#pragma GCC unroll 4
      for (size_t u = 0; u < kUnroll; ++u) {
        lanes[u] = operation.Next(lanes[u], E::Load(from + u * kStride), input);
      }
    }
    [[gnu::always_inline]] static void Copy(const Lanes (&from)[kUnroll], Lanes (&to)[kUnroll]) {
#pragma GCC unroll 4
      for (size_t u = 0; u < kUnroll; ++u) to[u] = from[u];
    }
    [[gnu::always_inline]] static void Finish(const O& operation, const Lanes (&lanes)[kUnroll],
                                              std::byte* to, bool streaming) {
#pragma GCC unroll 4
      for (size_t u = 0; u < kUnroll; ++u) {
        Store(to + u * kStride, Packing(operation, lanes[u]), streaming);
      }
    }

    // Sums the bytes from `begin` to `end`, any number, a vector at a time. A part of a vector is
    // padded.
    static void Rest(const KernelArguments& arguments, size_t begin, size_t end) {
      const O operation(arguments);
      for (size_t at = begin; at < end; at += kStride) {
        const size_t bytes = end - at < kStride ? end - at : kStride;
        Lanes lanes = operation.First(LoadPart(arguments.inputs[0] + at, bytes));
        for (size_t i = 1; i < arguments.input_count; ++i) {
          lanes = operation.Next(lanes, LoadPart(arguments.inputs[i] + at, bytes), i);
        }
        const Packed packed = Packing(operation, lanes);
        __builtin_memcpy(arguments.output + at, &packed, bytes);
      }
    }

    static Packed Packing(const O& operation, Lanes lanes) {
      if constexpr (O::kExact) {
        return E::PackExact(operation.Last(lanes));
      } else {
        return E::Pack(operation.Last(lanes));
      }
    }

    static Lanes LoadPart(const std::byte* from, size_t bytes) {
      if (bytes == kStride) return E::Load(from);
      std::byte padded[kStride] = {};
      __builtin_memcpy(padded, from, bytes);
      return E::Load(padded);
    }
  };

  // ----- Integers times a number. -----

  // Multiplies in double, rounded to nearest; then rounds toward zero, and to the nearest of T's
  // numbers. Takes as many bytes at a time as make a vector of doubles when widened.
  template <class T>
  struct ScaledInteger {
    static constexpr bool kIsLong = sizeof(T) == 8;
    static constexpr size_t kStride = Isa::kVectorBytes / (kIsLong ? 1 : 2);
    using Lanes = typename Elements::template VectorOf<T, kStride>::Type;
    using Doubles = Vector<double>;
    static constexpr bool kIsSigned = static_cast<T>(-1) < 0;
    static constexpr int kBits = sizeof(T) * 8;
    static constexpr int kValueBits = kBits - (kIsSigned ? 1 : 0);
    static constexpr T kLeast = kIsSigned ? static_cast<T>(T{1} << kValueBits) : T{0};
    static constexpr T kGreatest = static_cast<T>(~kLeast);
    // The first number above all of T, and the last double below it.
    static constexpr double kBeyond = 2.0 * static_cast<double>(uint64_t{1} << (kValueBits - 1));
    static constexpr double kLastDouble =
        kBeyond - (kIsLong ? static_cast<double>(uint64_t{1} << (kValueBits - 53)) : 1);

    static void Run(const KernelArguments& arguments) {
      const std::byte* const input = arguments.inputs[0];
      const Doubles factor = Doubles{} + Finite(arguments.scale);
      size_t at = 0;
      for (; arguments.bytes - at >= kStride; at += kStride) {
        const Lanes lanes = Scaled(Elements::template LoadVector<Lanes>(input + at), factor);
        __builtin_memcpy(arguments.output + at, &lanes, kStride);
      }
      if (at == arguments.bytes) return;
      Lanes rest = {};
      __builtin_memcpy(&rest, input + at, arguments.bytes - at);
      rest = Scaled(rest, factor);
      __builtin_memcpy(arguments.output + at, &rest, arguments.bytes - at);
    }

    // A factor with the same effect whose products are never NaN: 0 for NaN; for an infinity the
    // greatest double, which takes every integer but 0 beyond T.
    static double Finite(double factor) {
      constexpr double kMost = __DBL_MAX__;
      if (factor > kMost) return kMost;
      if (factor < -kMost) return -kMost;
      return factor == factor ? factor : 0;  // NOLINT(misc-redundant-expression)
    }

    [[gnu::always_inline]] static Lanes Scaled(Lanes x, Doubles factor) {
      if constexpr (kIsLong) {
        const Doubles product = __builtin_convertvector(x, Doubles) * factor;
        const Lanes lanes = __builtin_convertvector(Within(product), Lanes);
        return product >= kBeyond ? Lanes{} + kGreatest : lanes;
      } else {
        return ScaledInWords(x, factor);
      }
    }

    [[gnu::always_inline]] static Doubles Within(Doubles x) {
      const Doubles least = Doubles{} + static_cast<double>(kLeast);
      const Doubles last = Doubles{} + kLastDouble;
      const Doubles above = x > least ? x : least;
      return above < last ? above : last;
    }

    // A small integer is widened to a word where it lies, so that no lane has to move: first the
    // first integers of all words, then their second ones.
    template <class Word>
    using WordsOf = typename Elements::template VectorOf<Word, kStride>::Type;
    using Bits = WordsOf<uint32_t>;
    using Extended = WordsOf<typename WordOf<!kIsSigned>::Type>;  // With the sign, or zeros.
    // Processors convert signed words; what is smaller than a word fits one.
    using Words = WordsOf<typename WordOf<!kIsSigned && kBits == 32>::Type>;
    [[gnu::always_inline]] static Lanes ScaledInWords(Lanes x, Doubles factor) {
      const Bits packed = __builtin_bit_cast(Bits, x);
      Bits result = {};
#pragma GCC unroll 4
      for (int begin = 0; begin < 32; begin += kBits) {
        const Bits at_the_top = packed << (32 - kBits - begin);
        const Extended extended = __builtin_bit_cast(Extended, at_the_top) >> (32 - kBits);
        const Doubles product =
            __builtin_convertvector(__builtin_bit_cast(Words, extended), Doubles) * factor;
        const Words words = __builtin_convertvector(Within(product), Words);
        const Bits low = __builtin_bit_cast(Bits, words) & (~uint32_t{0} >> (32 - kBits));
        result |= low << begin;
      }
      return __builtin_bit_cast(Lanes, result);
    }
  };

  // ----- The table. -----

  template <class E>
  static constexpr void FillFloats(Kernel (&row)[kCombineCount]) {
    row[static_cast<size_t>(Combine::kSum)] = &Loop<E, Sum<E>>::Run;
    row[static_cast<size_t>(Combine::kSumTimes)] = &Loop<E, SumTimes<E>>::Run;
    row[static_cast<size_t>(Combine::kSumOver)] = &Loop<E, SumOver<E>>::Run;
    row[static_cast<size_t>(Combine::kWeightedSumOver)] = &Loop<E, WeightedSumOver<E>>::Run;
    row[static_cast<size_t>(Combine::kProduct)] = &Loop<E, Product<E>>::Run;
    row[static_cast<size_t>(Combine::kScale)] = &Loop<E, SumTimes<E>>::Run;
  }

  template <class Least, class Greatest>
  static constexpr void FillEnds(Kernel (&row)[kCombineCount]) {
    row[static_cast<size_t>(Combine::kMin)] = &Loop<Least, Min<Least>>::Run;
    row[static_cast<size_t>(Combine::kMax)] = &Loop<Greatest, Max<Greatest>>::Run;
  }

  // Works on bytes, whatever elements they make up.
  static constexpr void FillBits(Kernel (&row)[kCombineCount]) {
    using E = Plain<uint8_t>;
    row[static_cast<size_t>(Combine::kBitAnd)] = &Loop<E, BitAnd<E>>::Run;
    row[static_cast<size_t>(Combine::kBitOr)] = &Loop<E, BitOr<E>>::Run;
    row[static_cast<size_t>(Combine::kBitXor)] = &Loop<E, BitXor<E>>::Run;
  }

  // Sums and products have the same bits with and without a sign; those without one wrap.
  template <class T, class Unsigned>
  static constexpr void FillIntegers(Kernel (&row)[kCombineCount]) {
    using E = Plain<T>;
    using Wrapping = Plain<Unsigned>;
    FillEnds<E, E>(row);
    row[static_cast<size_t>(Combine::kSum)] = &Loop<Wrapping, Sum<Wrapping>>::Run;
    row[static_cast<size_t>(Combine::kProduct)] = &Loop<Wrapping, Product<Wrapping>>::Run;
    row[static_cast<size_t>(Combine::kScale)] = &ScaledInteger<T>::Run;
    FillBits(row);
  }

  static constexpr KernelTable Table() {
    KernelTable table = {};
    FillFloats<Plain<float>>(table.kernels[0]);  // In the order of DType's values.
    FillFloats<Plain<double>>(table.kernels[1]);
    FillFloats<Float16>(table.kernels[2]);
    FillFloats<BFloat16>(table.kernels[3]);
    FillEnds<Plain<float>, Plain<float>>(table.kernels[0]);
    FillEnds<Plain<double>, Plain<double>>(table.kernels[1]);
    FillEnds<OrderedFloat16<false>, OrderedFloat16<true>>(table.kernels[2]);
    FillEnds<OrderedBFloat16<false>, OrderedBFloat16<true>>(table.kernels[3]);
    FillIntegers<int8_t, uint8_t>(table.kernels[4]);
    FillIntegers<uint8_t, uint8_t>(table.kernels[5]);
    FillIntegers<int32_t, uint32_t>(table.kernels[6]);
    FillIntegers<int64_t, uint64_t>(table.kernels[7]);
    FillIntegers<int16_t, uint16_t>(table.kernels[8]);
    FillIntegers<uint16_t, uint16_t>(table.kernels[9]);
    FillIntegers<uint32_t, uint32_t>(table.kernels[10]);
    FillIntegers<uint64_t, uint64_t>(table.kernels[11]);
    FillEnds<Plain<uint8_t>, Plain<uint8_t>>(table.kernels[12]);
    FillBits(table.kernels[12]);
    return table;
  }
};

}  // namespace talweg::reduce::internal

#endif  // TALWEG_LIBS_REDUCE_LANE_KERNELS_H_
