// SPDX-License-Identifier: Apache-2.0
// Checks the rules of docs/arithmetic.md one by one, with numbers for which a kernel that breaks
// the rule gives another result.
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include <catch2/catch.hpp>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "libs/base/dtype.h"
#include "libs/base/random.h"
#include "libs/reduce/reduce.h"
#include "libs/reduce/reduce_fixture.h"
#include "libs/reduce/scalar_reference.h"

namespace talweg::reduce {
namespace {

using testing::Decode;
using testing::Encode;
using testing::kBFloat16;
using testing::kBinary16;

// Reduces one element of each input.
uint64_t ReduceOne(ReduceSpec spec, std::initializer_list<uint64_t> bits, Isa isa,
                   std::initializer_list<float> weights = {}) {
  std::vector<const std::byte*> inputs;
  inputs.reserve(bits.size());
  for (const uint64_t& b : bits) inputs.push_back(reinterpret_cast<const std::byte*>(&b));
  std::byte output[8] = {};
  spec.weights = {weights.begin(), weights.size()};
  Reduce(spec, inputs, output, 1, isa);
  return LoadBits(spec.dtype, output);
}

TEST_CASE("Reduce: all 65536 numbers of 16 bits are widened and narrowed", "[reduce]") {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const auto format = dtype == DType::kF16 ? kBinary16 : kBFloat16;
    const uint16_t nan = dtype == DType::kF16 ? 0x7e00 : 0x7fc0;
    std::vector<uint16_t> all(65536);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    const std::byte* const bytes = reinterpret_cast<const std::byte*>(all.data());
    for (const Isa isa : SupportedIsas()) {
      // Divides by 4 (another binade, and denormals) and by 3, and takes the lesser of a number and
      // itself.
      std::vector<uint16_t> quarter(all.size());
      std::vector<uint16_t> third(all.size());
      std::vector<uint16_t> same(all.size());
      const std::byte* const twice[] = {bytes, bytes};
      Reduce({.dtype = dtype, .op = Op::kAverage, .divisor = 4}, {twice, 1},
             reinterpret_cast<std::byte*>(quarter.data()), all.size(), isa);
      Reduce({.dtype = dtype, .op = Op::kAverage, .divisor = 3}, {twice, 1},
             reinterpret_cast<std::byte*>(third.data()), all.size(), isa);
      Reduce({.dtype = dtype, .op = Op::kMin}, twice, reinterpret_cast<std::byte*>(same.data()),
             all.size(), isa);
      size_t wrong = 0;
      for (size_t i = 0; i < all.size(); ++i) {
        const float value = Decode(format, all[i]);
        wrong += quarter[i] == Encode(format, value / 4) ? 0 : 1;
        wrong += third[i] == Encode(format, value / 3) ? 0 : 1;
        wrong += same[i] == (std::isnan(value) ? nan : all[i]) ? 0 : 1;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("Reduce: float32 is rounded to 16 bits at every tie and beside it", "[reduce]") {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const auto format = dtype == DType::kF16 ? kBinary16 : kBFloat16;
    const uint64_t one = dtype == DType::kF16 ? 0x3c00 : 0x3f80;
    const uint16_t infinity = dtype == DType::kF16 ? 0x7c00 : 0x7f80;
    std::vector<float> values = {std::numeric_limits<float>::denorm_min(),
                                 std::numeric_limits<float>::max(),
                                 std::numeric_limits<float>::infinity()};
    for (uint16_t bits = 0; bits < infinity; ++bits) {
      const double low = Decode(format, bits);
      const double high = bits + 1 == infinity ? std::ldexp(1, dtype == DType::kF16 ? 16 : 128)
                                               : Decode(format, static_cast<uint16_t>(bits + 1));
      const float tie = static_cast<float>((low + high) / 2);
      for (const float value : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e38f)}) {
        values.push_back(value);
      }
    }
    size_t wrong = 0;
    for (const float value : values) {
      for (const float weight : {value, -value}) {
        if (weight == 1.0f) continue;  // One input with weight 1 is a copy.
        const uint16_t want = Encode(format, weight);
        for (const Isa isa : SupportedIsas()) {
          const uint64_t got =
              ReduceOne({.dtype = dtype, .op = Op::kAverage}, {one}, isa, {weight});
          wrong += got == want ? 0 : 1;
        }
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("Reduce: all 65536 numbers of 16 bits have an order", "[reduce]") {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const uint16_t infinity = dtype == DType::kF16 ? 0x7c00 : 0x7f80;
    const std::initializer_list<uint16_t> others = {
        0, 1, 0x8000, 0x8001, 0x3c00, 0xbc00, infinity, static_cast<uint16_t>(infinity | 0x8000)};
    std::vector<uint16_t> all(65536);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    for (const uint16_t other : others) {
      const std::vector<uint16_t> same(all.size(), other);
      const std::byte* const inputs[] = {reinterpret_cast<const std::byte*>(all.data()),
                                         reinterpret_cast<const std::byte*>(same.data())};
      for (const Op op : {Op::kMin, Op::kMax}) {
        std::vector<uint16_t> want;
        want.reserve(all.size());
        for (const uint16_t bits : all) {
          want.push_back(
              static_cast<uint16_t>(testing::ReduceElement(dtype, op, {bits, other}, {}, 1)));
        }
        for (const Isa isa : SupportedIsas()) {
          std::vector<uint16_t> got(all.size());
          Reduce({.dtype = dtype, .op = op}, inputs, reinterpret_cast<std::byte*>(got.data()),
                 got.size(), isa);
          CHECK((got == want));
        }
      }
    }
  }
}

// Counts the numbers for which number / `divisor`, or 2 * number / `divisor`, differs from the
// processor's own division.
template <class T, class Bits>
size_t WrongQuotients(DType dtype, const std::vector<T>& numbers, uint32_t divisor, Isa isa) {
  const std::byte* const input = reinterpret_cast<const std::byte*>(numbers.data());
  std::vector<T> got(numbers.size());
  size_t wrong = 0;
  for (const float weight : {1.0f, 2.0f}) {
    const std::span<const float> weights(&weight, 1);
    Reduce({.dtype = dtype, .op = Op::kAverage, .weights = weights, .divisor = divisor},
           {&input, 1}, reinterpret_cast<std::byte*>(got.data()), got.size(), isa);
    for (size_t i = 0; i < numbers.size(); ++i) {
      const T want = numbers[i] * static_cast<T>(weight) / static_cast<T>(divisor);
      const bool same = std::isnan(want) ? std::isnan(got[i])
                                         : std::bit_cast<Bits>(want) == std::bit_cast<Bits>(got[i]);
      wrong += same ? 0 : 1;
    }
  }
  return wrong;
}

constexpr uint32_t kDivisors[] = {
    3,   5,   6,    7,    9,     10,    12,    24,    31,    33,        64,      100,
    127, 129, 1000, 4095, 65521, 65535, 65536, 65537, 99999, 123456789, 1 << 24, 0xffffffff};

// Returns arbitrary numbers, and numbers whose quotient is next to a tie.
template <class T, class Bits>
std::vector<T> Dividends(uint32_t divisor, size_t count, Random& random) {
  constexpr int kDigits = std::numeric_limits<T>::digits;
  std::vector<T> numbers = {0, T{-0.0}, std::numeric_limits<T>::infinity(),
                            -std::numeric_limits<T>::infinity(), std::numeric_limits<T>::max()};
  while (numbers.size() < count) {
    numbers.push_back(std::bit_cast<T>(static_cast<Bits>(random.Next())));
    const uint64_t quotient = uint64_t{1} << (kDigits - 1) | random.Next() >> (65 - kDigits);
    const T near_tie = static_cast<T>((static_cast<long double>(quotient) + 0.5L) *
                                      static_cast<long double>(divisor));
    numbers.push_back(near_tie);
    numbers.push_back(std::ldexp(std::nextafter(near_tie, T{0}),
                                 -static_cast<int>(random.Below(sizeof(T) == 4 ? 190 : 1100))));
  }
  return numbers;
}

// Adds floats whose quotient is as near to a tie as possible without being one. A power of two
// times the number, and an odd number of halves times the divisor, differ by 1.
void AddHardest(uint32_t divisor, Random& random, std::vector<float>& numbers) {
  uint64_t odd = static_cast<uint64_t>(static_cast<float>(divisor));
  odd >>= std::countr_zero(odd);
  uint64_t inverse = odd;  // The inverse modulo 2^64, by Newton's iteration.
  for (int i = 0; i < 5; ++i) inverse *= 2 - odd * inverse;
  for (int i = 0; i < 20000; ++i) {
    const uint64_t mask = (uint64_t{2} << random.Below(25)) - 1;
    const uint64_t difference = random.Below(2) == 0 ? 1 : ~uint64_t{0};
    const uint64_t any = 1 << 24 | random.Below(1 << 24);
    const uint64_t halves = (any & ~mask) | (-difference * inverse & mask);
    const uint64_t number = (halves * odd + difference) / (mask + 1);
    if (halves >> 24 == 1 && number >> 23 == 1) numbers.push_back(static_cast<float>(number));
  }
}

TEST_CASE("Reduce: an average's quotient is rounded as a division's is", "[reduce]") {
  Random random(7);
  for (const uint32_t divisor : kDivisors) {
    auto floats = Dividends<float, uint32_t>(divisor, 20000, random);
    AddHardest(divisor, random, floats);
    const auto doubles = Dividends<double, uint64_t>(divisor, 20000, random);
    for (const Isa isa : SupportedIsas()) {
      INFO(IsaName(isa) << ", over " << divisor);
      CHECK(WrongQuotients<float, uint32_t>(DType::kF32, floats, divisor, isa) == 0);
      CHECK(WrongQuotients<double, uint64_t>(DType::kF64, doubles, divisor, isa) == 0);
    }
  }
}

TEST_CASE("Reduce: every float of a binade is divided", "[reduce]") {
  std::vector<float> binade(1 << 23);
  for (uint32_t i = 0; i < binade.size(); ++i) binade[i] = std::bit_cast<float>(0x3f800000 + i);
  for (const uint32_t divisor : {3, 7, 65535}) {
    for (const Isa isa : SupportedIsas()) {
      INFO(IsaName(isa) << ", over " << divisor);
      CHECK(WrongQuotients<float, uint32_t>(DType::kF32, binade, divisor, isa) == 0);
    }
  }
}

TEST_CASE("Reduce: sums go from left to right", "[reduce]") {
  const auto bits = [](float f) { return uint64_t{std::bit_cast<uint32_t>(f)}; };
  for (const Isa isa : SupportedIsas()) {
    const ReduceSpec spec = {.dtype = DType::kF32, .op = Op::kSum};
    CHECK(ReduceOne(spec, {bits(1e8f), bits(-1e8f), bits(1.0f)}, isa) == bits(1.0f));
    CHECK(ReduceOne(spec, {bits(1.0f), bits(1e8f), bits(-1e8f)}, isa) == bits(0.0f));
    CHECK(ReduceOne(spec, {bits(3e38f), bits(3e38f), bits(-3e38f)}, isa) ==
          bits(std::numeric_limits<float>::infinity()));
  }
}

TEST_CASE("Reduce: 16-bit types are rounded once, after the last input", "[reduce]") {
  for (const Isa isa : SupportedIsas()) {
    // 2048 + 1 is a tie in binary16. With rounding at each step the sum would stay 2048.
    CHECK(ReduceOne({.dtype = DType::kF16, .op = Op::kSum},
                    {0x6800, 0x3c00, 0x3c00, 0x3c00, 0x3c00}, isa) == 0x6802);
    // 65504 + 65504 - 65504 passes no infinity on the way.
    CHECK(ReduceOne({.dtype = DType::kF16, .op = Op::kSum}, {0x7bff, 0x7bff, 0xfbff}, isa) ==
          0x7bff);
    CHECK(ReduceOne({.dtype = DType::kF16, .op = Op::kSum}, {0x7bff, 0x7bff}, isa) == 0x7c00);
    CHECK(ReduceOne({.dtype = DType::kF16, .op = Op::kAverage, .divisor = 2}, {0x7bff, 0x7bff},
                    isa) == 0x7bff);
    CHECK(ReduceOne({.dtype = DType::kBF16, .op = Op::kSum}, {0x4380, 0x3f80, 0x3f80}, isa) ==
          0x4381);  // 256 + 1 + 1
  }
}

TEST_CASE("Reduce: minima and maxima treat NaN and zeros by the rules", "[reduce]") {
  const uint64_t zero = 0;
  const uint64_t minus_zero = 0x80000000;
  const uint64_t one = 0x3f800000;
  const uint64_t nan = 0x7fc00000;
  const uint64_t signalling = 0xff800001;
  const ReduceSpec min = {.dtype = DType::kF32, .op = Op::kMin};
  const ReduceSpec max = {.dtype = DType::kF32, .op = Op::kMax};
  for (const Isa isa : SupportedIsas()) {
    for (const ReduceSpec& spec : {min, max}) {
      CHECK(ReduceOne(spec, {signalling, one}, isa) == nan);
      CHECK(ReduceOne(spec, {one, signalling}, isa) == nan);
      CHECK(ReduceOne(spec, {one, 0xffffffff, one, one, one}, isa) == nan);
    }
    CHECK(ReduceOne(min, {zero, minus_zero}, isa) == minus_zero);
    CHECK(ReduceOne(min, {minus_zero, zero}, isa) == minus_zero);
    CHECK(ReduceOne(max, {zero, minus_zero}, isa) == zero);
    CHECK(ReduceOne(max, {minus_zero, zero}, isa) == zero);
  }
}

TEST_CASE("Reduce: one input is copied untouched, and so is a NaN's payload", "[reduce]") {
  for (const Isa isa : SupportedIsas()) {
    for (const Op op : {Op::kSum, Op::kAverage, Op::kMin, Op::kMax, Op::kProduct}) {
      CHECK(ReduceOne({.dtype = DType::kF32, .op = op}, {0xff812345}, isa) == 0xff812345);
    }
    CHECK(ReduceOne({.dtype = DType::kF32, .op = Op::kAverage, .divisor = 2}, {0xff812345}, isa) ==
          0x7fc00000);
  }
}

TEST_CASE("Reduce: integers wrap in their own type", "[reduce]") {
  for (const Isa isa : SupportedIsas()) {
    const auto reduce = [&](DType dtype, Op op, std::initializer_list<uint64_t> bits) {
      return ReduceOne({.dtype = dtype, .op = op}, bits, isa);
    };
    CHECK(reduce(DType::kI8, Op::kSum, {0x7f, 1}) == 0x80);
    CHECK(reduce(DType::kU8, Op::kSum, {200, 100}) == 44);
    CHECK(reduce(DType::kI8, Op::kProduct, {0x80, 0xff}) == 0x80);  // -128 * -1
    CHECK(reduce(DType::kI32, Op::kSum, {0x7fffffff, 1}) == 0x80000000);
    CHECK(reduce(DType::kI64, Op::kProduct, {uint64_t{1} << 62, 3}) == uint64_t{3} << 62);
    CHECK(reduce(DType::kI8, Op::kMin, {0x80, 0x7f}) == 0x80);
    CHECK(reduce(DType::kU8, Op::kMin, {0x80, 0x7f}) == 0x7f);
    CHECK(reduce(DType::kI16, Op::kSum, {0x7fff, 1}) == 0x8000);
    CHECK(reduce(DType::kU16, Op::kProduct, {0xffff, 0xffff}) == 1);
    CHECK(reduce(DType::kI16, Op::kMax, {0x8000, 0x7fff}) == 0x7fff);
    CHECK(reduce(DType::kU16, Op::kMax, {0x8000, 0x7fff}) == 0x8000);
    CHECK(reduce(DType::kU32, Op::kSum, {0xffffffff, 2}) == 1);
    CHECK(reduce(DType::kU32, Op::kMin, {0x80000000, 0x7fffffff}) == 0x7fffffff);
    CHECK(reduce(DType::kU64, Op::kMax, {uint64_t{1} << 63, 1}) == uint64_t{1} << 63);
    CHECK(reduce(DType::kU64, Op::kProduct, {0xfffffffff, 0xfffffffff}) == 0xffffffe000000001);
  }
}

TEST_CASE("Reduce: bitwise operations treat all bits alike", "[reduce]") {
  for (const Isa isa : SupportedIsas()) {
    const auto reduce = [&](DType dtype, Op op, std::initializer_list<uint64_t> bits) {
      return ReduceOne({.dtype = dtype, .op = op}, bits, isa);
    };
    CHECK(reduce(DType::kI16, Op::kBitAnd, {0xff00, 0x8ff0, 0xffff}) == 0x8f00);
    CHECK(reduce(DType::kU32, Op::kBitOr, {0x1, 0x80000000}) == 0x80000001);
    CHECK(reduce(DType::kI64, Op::kBitXor, {~uint64_t{0}, 1, 1, 2}) == ~uint64_t{2});
  }
}

TEST_CASE("Reduce: bools are bytes, even where they are neither 0 nor 1", "[reduce]") {
  for (const Isa isa : SupportedIsas()) {
    const auto reduce = [&](Op op, std::initializer_list<uint64_t> bits) {
      return ReduceOne({.dtype = DType::kBool, .op = op}, bits, isa);
    };
    CHECK(reduce(Op::kMin, {1, 0, 1}) == 0);
    CHECK(reduce(Op::kMax, {0, 1, 0}) == 1);
    CHECK(reduce(Op::kBitAnd, {1, 1, 1}) == 1);
    CHECK(reduce(Op::kBitXor, {1, 1, 1}) == 1);
    CHECK(reduce(Op::kBitXor, {1, 1}) == 0);
    CHECK(reduce(Op::kMax, {1, 0x80}) == 0x80);
    CHECK(reduce(Op::kBitAnd, {1, 2}) == 0);
    CHECK(reduce(Op::kBitOr, {1, 2}) == 3);
  }
}

// Scales one element.
uint64_t ScaleOne(DType dtype, double factor, uint64_t bits, Isa isa) {
  std::byte element[8] = {};
  StoreBits(dtype, bits, element);
  Scale(dtype, factor, element, element, 1, isa);
  return LoadBits(dtype, element);
}

TEST_CASE("Scale: 16-bit floats are multiplied in float32 and rounded once", "[reduce]") {
  for (const Isa isa : SupportedIsas()) {
    // 1 + 2^-10 times 1 + 2^-11 is a little more than a tie. A factor rounded to binary16 would be
    // 1.
    CHECK(ScaleOne(DType::kF16, 1 + 0x1p-11, 0x3c01, isa) == 0x3c02);
    // 65504 times 1 / 65504 is 1, though the factor is no binary16 number.
    CHECK(ScaleOne(DType::kF16, 1.0 / 65504, 0x7bff, isa) == 0x3c00);
    CHECK(ScaleOne(DType::kF16, 2, 0x7bff, isa) == 0x7c00);
    // 1 times 1 + 2^-8 is a tie in bfloat16 and rounds to even. A little more rounds up.
    CHECK(ScaleOne(DType::kBF16, 1 + 0x1p-8, 0x3f80, isa) == 0x3f80);
    CHECK(ScaleOne(DType::kBF16, 1 + 0x1p-8 + 0x1p-23, 0x3f80, isa) == 0x3f81);
    CHECK(ScaleOne(DType::kBF16, 3, 0xffff, isa) == 0x7fc0);
  }
}

TEST_CASE("Scale: a factor is rounded to f32, to no other type, and kept in f64", "[reduce]") {
  for (const Isa isa : SupportedIsas()) {
    CHECK(ScaleOne(DType::kF32, 0.1, 0x3f800000, isa) == 0x3dcccccd);
    CHECK(ScaleOne(DType::kF64, 0.1, 0x3ff0000000000000, isa) == 0x3fb999999999999a);
    // Half the least denormal is a tie, and rounds to even.
    CHECK(ScaleOne(DType::kF32, 0.5, 1, isa) == 0);
    CHECK(ScaleOne(DType::kF32, 0.5, 3, isa) == 2);
  }
}

TEST_CASE("Scale: integers are rounded toward zero, and stop at their type's bounds", "[reduce]") {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Isa isa : SupportedIsas()) {
    CHECK(ScaleOne(DType::kI8, 0.5, 0xfd, isa) == 0xff);  // -3 becomes -1.
    CHECK(ScaleOne(DType::kI8, 1.99, 0x01, isa) == 0x01);
    CHECK(ScaleOne(DType::kI8, 100, 0x02, isa) == 0x7f);
    CHECK(ScaleOne(DType::kI8, -100, 0x02, isa) == 0x80);
    CHECK(ScaleOne(DType::kU8, -1, 0x02, isa) == 0);
    CHECK(ScaleOne(DType::kU16, 0.1, 0xffff, isa) == 6553);
    CHECK(ScaleOne(DType::kU32, 0.5, 0xffffffff, isa) == 0x7fffffff);
    CHECK(ScaleOne(DType::kI32, 2, 0x7fffffff, isa) == 0x7fffffff);
    // In double, 2^63 - 1 becomes 2^63.
    const uint64_t most = ~uint64_t{0} >> 1;
    CHECK(ScaleOne(DType::kI64, 0.5, most, isa) == uint64_t{1} << 62);
    CHECK(ScaleOne(DType::kI64, 2, most, isa) == most);
    CHECK(ScaleOne(DType::kU64, 1 + 0x1p-52, ~uint64_t{0}, isa) == ~uint64_t{0});
    CHECK(ScaleOne(DType::kU64, 0.5, ~uint64_t{0}, isa) == uint64_t{1} << 63);
    CHECK(ScaleOne(DType::kI32, infinity, 0xffffffff, isa) == 0x80000000);
    CHECK(ScaleOne(DType::kI32, infinity, 0, isa) == 0);
  }
}

TEST_CASE("Scale: a factor of 1 changes no bit", "[reduce]") {
  for (const Isa isa : SupportedIsas()) {
    CHECK(ScaleOne(DType::kF32, 1, 0xff812345, isa) == 0xff812345);
    CHECK(ScaleOne(DType::kI64, 1, ~uint64_t{0} >> 1, isa) == ~uint64_t{0} >> 1);
  }
  CHECK_FALSE(IsScalable(DType::kBool));
  CHECK_FALSE(IsScalable(DType::kUnspecified));
}

#if defined(__x86_64__)
TEST_CASE("Reduce: denormals are kept, whatever the calling thread has set", "[reduce]") {
  constexpr unsigned kFlushToZero = 0x8040;
  constexpr unsigned kTowardsZero = 0x6000;
  const unsigned saved = _mm_getcsr();
  for (const Isa isa : SupportedIsas()) {
    for (const unsigned mode : {kFlushToZero, kTowardsZero}) {
      _mm_setcsr((saved & ~0x3fu) | mode);
      const uint64_t denormal = ReduceOne({.dtype = DType::kF32, .op = Op::kSum}, {1, 2}, isa);
      const uint64_t rounded =
          ReduceOne({.dtype = DType::kF32, .op = Op::kSum}, {0x3f800000, 0x33c00000}, isa);
      const unsigned after = _mm_getcsr();
      _mm_setcsr(saved);
      CHECK(denormal == 3);
      CHECK(rounded == 0x3f800001);  // 1 + 0.75 units in the last place, rounded up.
      CHECK((after & ~0x3fu) == ((saved & ~0x3fu) | mode));
    }
  }
}
#endif

// Reduces the ranks of several agents in two hops and in one, as FirstHop and LastHop promise.
TEST_CASE("Reduce: an average over two hops counts every rank once", "[reduce]") {
  const auto reduce_f32 = [](const ReduceSpec& spec, const std::vector<float>& values) {
    std::vector<const std::byte*> inputs;
    inputs.reserve(values.size());
    for (const float& value : values) inputs.push_back(reinterpret_cast<const std::byte*>(&value));
    float result = 0;
    Reduce(spec, inputs, reinterpret_cast<std::byte*>(&result), 1);
    return result;
  };
  const std::initializer_list<float> rank_counts = {3, 1};
  const std::span<const float> both(rank_counts.begin(), rank_counts.size());
  {
    const float node0 = reduce_f32(FirstHop(DType::kF32, Op::kAverage, 3), {1, 2, 6});
    const float node1 = reduce_f32(FirstHop(DType::kF32, Op::kAverage, 1), {11});
    CHECK(node0 == 9.0f);
    CHECK(reduce_f32(LastHop(DType::kF32, Op::kAverage, both, 4), {node0, node1}) == 5.0f);
    CHECK(reduce_f32(OnlyHop(DType::kF32, Op::kAverage, 4), {1, 2, 6, 11}) == 5.0f);
  }
  {
    const uint64_t large = Encode(kBinary16, 60000);
    const uint64_t node0 =
        ReduceOne(FirstHop(DType::kF16, Op::kAverage, 3), {large, large, large}, BestIsa());
    CHECK(node0 == large);
    CHECK(ReduceOne(LastHop(DType::kF16, Op::kAverage, both, 4), {node0, large}, BestIsa(),
                    rank_counts) == large);
    CHECK(ReduceOne(LastHop(DType::kF16, Op::kAverage, both.first(1), 3), {node0}, BestIsa()) ==
          large);
  }
  // Other operations have the same spec on every hop.
  for (const ReduceSpec& spec :
       {FirstHop(DType::kI8, Op::kMax, 3), LastHop(DType::kI8, Op::kMax, both, 4),
        OnlyHop(DType::kI8, Op::kMax, 4)}) {
    CHECK(spec.op == Op::kMax);
    CHECK(spec.weights.empty());
    CHECK(spec.divisor == 1);
  }
}

TEST_CASE("Reduce: one hop gives the bits of two hops with a single contribution", "[reduce]") {
  Random random(6);
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    for (int i = 0; i < 500; ++i) {
      const uint64_t a = InterestingBits(dtype, random);
      const uint64_t b = InterestingBits(dtype, random);
      const uint64_t c = InterestingBits(dtype, random);
      const std::initializer_list<float> three = {3};
      const uint64_t node = ReduceOne(FirstHop(dtype, Op::kAverage, 3), {a, b, c}, BestIsa());
      const ReduceSpec last = LastHop(dtype, Op::kAverage, {three.begin(), 1}, 3);
      CHECK(ReduceOne(last, {node}, BestIsa()) ==
            ReduceOne(OnlyHop(dtype, Op::kAverage, 3), {a, b, c}, BestIsa()));
    }
  }
}

TEST_CASE("IsReduction: it is true where OpDefined is, except for broadcasts", "[reduce]") {
  for (const DType dtype : kAllDTypes) {
    CHECK(IsReduction(dtype, Op::kSum) == (dtype != DType::kBool));
    CHECK(IsReduction(dtype, Op::kAverage) == IsFloat(dtype));
    CHECK(IsReduction(dtype, Op::kBitXor) == !IsFloat(dtype));
    CHECK_FALSE(IsReduction(dtype, Op::kCopy));
    CHECK_FALSE(IsReduction(dtype, Op::kUnspecified));
  }
  CHECK_FALSE(IsReduction(DType::kUnspecified, Op::kSum));
  CHECK_FALSE(IsReduction(static_cast<DType>(99), Op::kSum));
}

TEST_CASE("Isa: the portable kernels run anywhere, and the best one is supported", "[reduce]") {
  CHECK(IsSupported(Isa::kPortable));
  CHECK(IsSupported(BestIsa()));
  WARN("tested: " << SupportedIsas().size() << " of 3 instruction sets; best "
                  << IsaName(BestIsa()));
}

}  // namespace
}  // namespace talweg::reduce
