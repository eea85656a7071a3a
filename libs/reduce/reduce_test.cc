// SPDX-License-Identifier: Apache-2.0
#include "libs/reduce/reduce.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "libs/base/dtype.h"
#include "libs/base/random.h"
#include "libs/reduce/scalar_reference.h"

namespace talweg::reduce {
namespace {

using testing::Decode;
using testing::Encode;
using testing::kBFloat16;
using testing::kBinary16;

constexpr DType kAllDTypes[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16,
                                DType::kI8,  DType::kU8,  DType::kI32, DType::kI64};
constexpr Op kAllOps[] = {Op::kSum, Op::kAverage, Op::kMin, Op::kMax, Op::kProduct, Op::kBroadcast};

std::vector<Isa> SupportedIsas() {
  std::vector<Isa> isas;
  for (const Isa isa : kAllIsas) {
    if (IsSupported(isa)) isas.push_back(isa);
  }
  return isas;
}

// Bits that meet each other often enough to matter: NaNs quiet and signalling, infinities, zeros
// and denormals of both signs, the largest numbers, numbers near 1, integers at their ends.
uint64_t InterestingBits(DType dtype, Random& random) {
  const uint64_t any = random.Next();
  const uint64_t choice = random.Next() % 4;
  const auto pick = [&](std::initializer_list<uint64_t> values) {
    return values.begin()[any % values.size()];
  };
  switch (dtype) {
    case DType::kF32:
      if (choice == 0) {
        return pick({0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x00800000,
                     0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000,
                     0x7f800001, 0xffbfffff, 0x7fffffff, 0x3f800000, 0xbf800000});
      }
      if (choice == 1) return any & 0xffffffff;
      return 0x3e000000 + (any & 0x81ffffff);
    case DType::kF64:
      if (choice == 0) {
        return pick({0, uint64_t{1} << 63, 1, 0x800fffffffffffff, 0x0010000000000000,
                     0x7fefffffffffffff, 0xffefffffffffffff, 0x7ff0000000000000, 0xfff0000000000000,
                     0x7ff8000000000000, 0xfff8000000000000, 0x7ff0000000000001, 0xfff7ffffffffffff,
                     0x3ff0000000000000});
      }
      if (choice == 1) return any;
      return 0x3fc0000000000000 + (any & 0x803fffffffffffff);
    case DType::kF16:
      if (choice == 0) {
        return pick({0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff, 0x7c00, 0xfc00,
                     0x7e00, 0xfe00, 0x7c01, 0xfdff, 0x7fff, 0x3c00, 0xbc00});
      }
      return choice == 1 ? any & 0xffff : 0x3000 + (any & 0x8fff);
    case DType::kBF16:
      if (choice == 0) {
        return pick({0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x7f7f, 0xff7f, 0x7f80, 0xff80,
                     0x7fc0, 0xffc0, 0x7f81, 0xffbf, 0x7fff, 0x3f80, 0xbf80});
      }
      return choice == 1 ? any & 0xffff : 0x3e00 + (any & 0x81ff);
    default: {
      const int bits = static_cast<int>(DTypeSize(dtype)) * 8;
      const uint64_t mask = ~uint64_t{0} >> (64 - bits);
      if (choice == 0) return pick({0, 1, 2, mask, mask >> 1, (mask >> 1) + 1, mask - 1});
      return any & mask;
    }
  }
}

void StoreBits(DType dtype, uint64_t bits, std::byte* to) {
  std::memcpy(to, &bits, DTypeSize(dtype));  // Little-endian, as all hosts here.
}

uint64_t LoadBits(DType dtype, const std::byte* from) {
  uint64_t bits = 0;
  std::memcpy(&bits, from, DTypeSize(dtype));
  return bits;
}

// One set of inputs and what they must become.
struct Case {
  ReduceSpec spec;
  std::vector<float> weights;
  std::vector<std::vector<std::byte>> inputs;
  std::vector<std::byte> expected;
};

Case MakeCase(DType dtype, Op op, size_t input_count, std::vector<float> weights, uint32_t divisor,
              size_t element_count, Random& random) {
  const size_t size = DTypeSize(dtype);
  Case made = {.spec = {.dtype = dtype, .op = op, .divisor = divisor},
               .weights = std::move(weights),
               .inputs = std::vector(input_count, std::vector<std::byte>(element_count * size)),
               .expected = std::vector<std::byte>(element_count * size)};
  const bool is_copy = input_count == 1 && made.weights.empty() && divisor == 1;
  std::vector<uint64_t> bits(input_count);
  for (size_t e = 0; e < element_count; ++e) {
    for (size_t i = 0; i < input_count; ++i) {
      bits[i] = InterestingBits(dtype, random);
      StoreBits(dtype, bits[i], &made.inputs[i][e * size]);
    }
    StoreBits(dtype,
              is_copy ? bits[0] : testing::ReduceElement(dtype, op, bits, made.weights, divisor),
              &made.expected[e * size]);
  }
  return made;
}

constexpr std::byte kGuard{0xa5};
constexpr size_t kGuardBytes = 64;

// Memory in which bytes lie at a chosen distance from an address that 64 divides, between guards.
class Placed {
 public:
  Placed(size_t offset, size_t bytes)
      : memory_(bytes + offset + 2 * kGuardBytes + 64, kGuard), bytes_(bytes) {
    const size_t askew = reinterpret_cast<uintptr_t>(memory_.data()) % 64;
    begin_ = (64 - askew) % 64 + kGuardBytes + offset;
  }
  std::byte* data() { return memory_.data() + begin_; }
  bool GuardsAreIntact() const {
    const auto is_guard = [](std::byte b) { return b == kGuard; };
    return std::all_of(memory_.begin(), memory_.begin() + static_cast<ptrdiff_t>(begin_),
                       is_guard) &&
           std::all_of(memory_.begin() + static_cast<ptrdiff_t>(begin_ + bytes_), memory_.end(),
                       is_guard);
  }

 private:
  std::vector<std::byte> memory_;
  size_t bytes_;
  size_t begin_;
};

enum class Layout { kAligned, kOddElements, kOddBytes };

size_t OffsetOf(Layout layout, size_t buffer, size_t element_bytes) {
  switch (layout) {
    case Layout::kAligned: return 0;
    case Layout::kOddElements: return (2 * buffer + 1) * element_bytes % 64;
    case Layout::kOddBytes: return (14 * buffer + 3) % 64;
  }
  return 0;
}

const std::string kNothing;

// Reduces elements [first, first + count) of the case; kNothing, or what was wrong.
std::string Try(const Case& tried, Isa isa, Stores stores, Layout layout, bool in_place,
                size_t first, size_t count) {
  const DType dtype = tried.spec.dtype;
  const size_t size = DTypeSize(dtype);
  const size_t bytes = count * size;
  std::vector<Placed> placed;
  std::vector<const std::byte*> inputs;
  inputs.reserve(tried.inputs.size());
  for (size_t i = 0; i < tried.inputs.size(); ++i) {
    placed.emplace_back(OffsetOf(layout, i, size), bytes);
    if (bytes != 0) std::memcpy(placed[i].data(), &tried.inputs[i][first * size], bytes);
  }
  for (Placed& input : placed) inputs.push_back(input.data());
  Placed apart(OffsetOf(layout, tried.inputs.size(), size), bytes);
  std::byte* const output = in_place ? placed[0].data() : apart.data();
  ReduceSpec spec = tried.spec;
  spec.weights = tried.weights;
  spec.stores = stores;
  Reduce(spec, inputs, output, count, isa);

  const auto what = [&] {
    return std::string(DTypeName(dtype)) + " " + std::string(OpName(spec.op)) + " " +
           std::string(IsaName(isa)) + ", " + std::to_string(inputs.size()) + " inputs, " +
           std::to_string(count) + " elements, layout " + std::to_string(static_cast<int>(layout)) +
           (in_place ? ", in place" : "") + ", stores " + std::to_string(static_cast<int>(stores)) +
           ", divisor " + std::to_string(spec.divisor) + ": ";
  };
  if (bytes != 0 && std::memcmp(output, &tried.expected[first * size], bytes) != 0) {
    size_t e = 0;
    while (std::memcmp(output + e * size, &tried.expected[(first + e) * size], size) == 0) ++e;
    std::ostringstream text;
    text << what() << "element " << e << std::hex << ", want "
         << LoadBits(dtype, &tried.expected[(first + e) * size]) << ", got "
         << LoadBits(dtype, output + e * size) << " from";
    for (const auto& input : tried.inputs)
      text << ' ' << LoadBits(dtype, &input[(first + e) * size]);
    return text.str();
  }
  for (const Placed& input : placed) {
    if (!input.GuardsAreIntact()) return what() + "written beside an input";
  }
  if (!apart.GuardsAreIntact()) return what() + "written beside the output";
  for (size_t i = in_place ? 1 : 0; i < placed.size() && bytes != 0; ++i) {
    if (std::memcmp(placed[i].data(), &tried.inputs[i][first * size], bytes) != 0) {
      return what() + "written into an input";
    }
  }
  return kNothing;
}

// All lengths around the widths of vectors and blocks, and some without any pattern.
constexpr size_t kLengths[] = {0,  1,  2,  3,  7,  8,   9,   15,  16,  17,  31,  32,   33,
                               47, 63, 64, 65, 96, 127, 128, 129, 255, 257, 511, 1023, 4099};
constexpr size_t kLengthMax = 4099;

constexpr std::pair<Layout, bool> kPlacements[] = {{Layout::kAligned, false},
                                                   {Layout::kOddElements, false},
                                                   {Layout::kOddBytes, false},
                                                   {Layout::kOddElements, true}};

TEST_CASE("Reduce: every dtype, op, ISA, length, alignment and number of inputs", "[reduce]") {
  Random random(1);
  for (const DType dtype : kAllDTypes) {
    for (const Op op : kAllOps) {
      if (!IsReduction(dtype, op)) continue;
      for (size_t inputs = 1; inputs <= 9; ++inputs) {
        const uint32_t divisor = op == Op::kAverage ? static_cast<uint32_t>(inputs) : 1;
        // The longest only with the inputs of a loop of its own each; the reference is slow.
        const size_t length_max = inputs <= 5 && inputs != 1 ? kLengthMax : 600;
        const Case made = MakeCase(dtype, op, inputs, {}, divisor, length_max, random);
        for (const Isa isa : SupportedIsas()) {
          for (const size_t length : kLengths) {
            if (length > length_max) continue;
            const size_t first = random.Below(length_max - length + 1);
            for (const auto& [layout, in_place] : kPlacements) {
              const std::string wrong =
                  Try(made, isa, Stores::kAutomatic, layout, in_place, first, length);
              if (!wrong.empty()) FAIL(wrong);
            }
          }
        }
      }
    }
  }
  SUCCEED();
}

TEST_CASE("Reduce: many inputs", "[reduce]") {
  Random random(2);
  for (const DType dtype : kAllDTypes) {
    for (const size_t inputs : {16, 33}) {
      const Case made = MakeCase(dtype, Op::kSum, inputs, {}, 1, 517, random);
      for (const Isa isa : SupportedIsas()) {
        CHECK(Try(made, isa, Stores::kAutomatic, Layout::kOddElements, false, 0, 517) == kNothing);
      }
    }
  }
}

TEST_CASE("Reduce: averages by any divisor, with and without weights", "[reduce]") {
  Random random(3);
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    for (size_t inputs = 1; inputs <= 9; ++inputs) {
      for (const uint32_t divisor :
           {1u, 2u, 3u, 7u, 8u, 1000u, 1u << 24, (1u << 24) + 1, 1u << 31}) {
        for (const bool weighted : {false, true}) {
          std::vector<float> weights;
          for (size_t i = 0; weighted && i < inputs; ++i) {
            weights.push_back(static_cast<float>(1 + random.Below(12)));
          }
          if (weighted) weights[0] = 3;
          const Case made = MakeCase(dtype, Op::kAverage, inputs, weights, divisor, 333, random);
          for (const Isa isa : SupportedIsas()) {
            CHECK(Try(made, isa, Stores::kAutomatic, Layout::kAligned, false, 0, 333) == kNothing);
            CHECK(Try(made, isa, Stores::kAutomatic, Layout::kOddBytes, true, 32, 301) == kNothing);
          }
        }
      }
    }
  }
}

TEST_CASE("Reduce: weights of 1 are no weights", "[reduce]") {
  Random random(4);
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    Case made = MakeCase(dtype, Op::kAverage, 3, {}, 5, 100, random);
    made.weights = {1, 1, 1};
    for (const Isa isa : SupportedIsas()) {
      CHECK(Try(made, isa, Stores::kAutomatic, Layout::kAligned, false, 0, 100) == kNothing);
    }
  }
}

TEST_CASE("Reduce: stores around the caches write the same bytes", "[reduce]") {
  Random random(5);
  for (const DType dtype : kAllDTypes) {
    const Case made = MakeCase(dtype, Op::kSum, 3, {}, 1, 4099, random);
    for (const Isa isa : SupportedIsas()) {
      for (const Layout layout : {Layout::kAligned, Layout::kOddElements, Layout::kOddBytes}) {
        for (const size_t length : kLengths) {
          CHECK(Try(made, isa, Stores::kStreaming, layout, false, 0, length) == kNothing);
          CHECK(Try(made, isa, Stores::kStreaming, layout, true, 0, length) == kNothing);
        }
      }
    }
  }
}

// One element through Reduce.
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
      // Times 1 / 4 (another binade, and denormals), and the lesser of a number and itself.
      std::vector<uint16_t> quarter(all.size());
      std::vector<uint16_t> same(all.size());
      const std::byte* const twice[] = {bytes, bytes};
      Reduce({.dtype = dtype, .op = Op::kAverage, .divisor = 4}, {twice, 1},
             reinterpret_cast<std::byte*>(quarter.data()), all.size(), isa);
      Reduce({.dtype = dtype, .op = Op::kMin}, twice, reinterpret_cast<std::byte*>(same.data()),
             all.size(), isa);
      size_t wrong = 0;
      for (size_t i = 0; i < all.size(); ++i) {
        const float value = Decode(format, all[i]);
        wrong += quarter[i] == Encode(format, value / 4) ? 0 : 1;
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
        if (weight == 1.0f) continue;  // A copy.
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

TEST_CASE("Reduce: sums are made from the left", "[reduce]") {
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
    // 2048 + 1 is a tie in binary16, which rounded each time would stay 2048.
    CHECK(ReduceOne({.dtype = DType::kF16, .op = Op::kSum},
                    {0x6800, 0x3c00, 0x3c00, 0x3c00, 0x3c00}, isa) == 0x6802);
    // 65504 + 65504 - 65504: no infinity on the way.
    CHECK(ReduceOne({.dtype = DType::kF16, .op = Op::kSum}, {0x7bff, 0x7bff, 0xfbff}, isa) ==
          0x7bff);
    CHECK(ReduceOne({.dtype = DType::kF16, .op = Op::kSum}, {0x7bff, 0x7bff}, isa) == 0x7c00);
    CHECK(ReduceOne({.dtype = DType::kF16, .op = Op::kAverage, .divisor = 2}, {0x7bff, 0x7bff},
                    isa) == 0x7bff);
    CHECK(ReduceOne({.dtype = DType::kBF16, .op = Op::kSum}, {0x4380, 0x3f80, 0x3f80}, isa) ==
          0x4381);  // 256 + 1 + 1
  }
}

TEST_CASE("Reduce: NaN and zeros in minima and maxima", "[reduce]") {
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

TEST_CASE("Reduce: one input is copied untouched, a NaN's payload too", "[reduce]") {
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
  }
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
      CHECK(rounded == 0x3f800001);  // 1 + 0.75 units of its last place.
      CHECK((after & ~0x3fu) == ((saved & ~0x3fu) | mode));
    }
  }
}
#endif

// Ranks of agents, reduced in two hops and in one: the contract of FirstHop and LastHop.
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
  // Other operations are the same on every hop.
  for (const ReduceSpec& spec :
       {FirstHop(DType::kI8, Op::kMax, 3), LastHop(DType::kI8, Op::kMax, both, 4),
        OnlyHop(DType::kI8, Op::kMax, 4)}) {
    CHECK(spec.op == Op::kMax);
    CHECK(spec.weights.empty());
    CHECK(spec.divisor == 1);
  }
}

TEST_CASE("Reduce: one hop gives the bits of two with a single contribution", "[reduce]") {
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

TEST_CASE("IsReduction: no averages of integers, no broadcasts", "[reduce]") {
  for (const DType dtype : kAllDTypes) {
    CHECK(IsReduction(dtype, Op::kSum));
    CHECK(IsReduction(dtype, Op::kAverage) == !IsInteger(dtype));
    CHECK_FALSE(IsReduction(dtype, Op::kBroadcast));
    CHECK_FALSE(IsReduction(dtype, Op::kUnspecified));
  }
  CHECK_FALSE(IsReduction(DType::kUnspecified, Op::kSum));
  CHECK_FALSE(IsReduction(static_cast<DType>(99), Op::kSum));
}

TEST_CASE("Isa: the portable kernels run anywhere, and the best is supported", "[reduce]") {
  CHECK(IsSupported(Isa::kPortable));
  CHECK(IsSupported(BestIsa()));
  WARN("tested: " << SupportedIsas().size() << " of 3 instruction sets; best "
                  << IsaName(BestIsa()));
}

}  // namespace
}  // namespace talweg::reduce
