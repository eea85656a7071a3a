// SPDX-License-Identifier: Apache-2.0
// Compares every kernel, on everything that it may get, with the reference.
#include "libs/reduce/reduce.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/dtype.h"
#include "libs/base/random.h"
#include "libs/reduce/reduce_fixture.h"
#include "libs/reduce/scalar_reference.h"

namespace talweg::reduce {
namespace {

// One set of inputs and the expected output.
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

// Memory between guards. Its bytes begin at a chosen distance from an address divisible by 64.
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

// Reduces elements [first, first + count) of the case. Returns kNothing, or what was wrong.
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

// Lengths around the widths of vectors and blocks, and some irregular ones.
constexpr size_t kLengths[] = {0,  1,  2,  3,  7,  8,   9,   15,  16,  17,  31,  32,   33,
                               47, 63, 64, 65, 96, 127, 128, 129, 255, 257, 511, 1023, 4099};
constexpr size_t kLengthMax = 4099;

constexpr std::pair<Layout, bool> kPlacements[] = {{Layout::kAligned, false},
                                                   {Layout::kOddElements, false},
                                                   {Layout::kOddBytes, false},
                                                   {Layout::kOddElements, true}};

TEST_CASE(
    "Reduce: the result is right for every dtype, op, ISA, length, alignment and number of inputs",
    "[reduce]") {
  Random random(1);
  for (const DType dtype : kAllDTypes) {
    for (const Op op : kAllOps) {
      if (!IsReduction(dtype, op)) continue;
      for (size_t inputs = 1; inputs <= 9; ++inputs) {
        const uint32_t divisor = op == Op::kAverage ? static_cast<uint32_t>(inputs) : 1;
        // Inputs are long only for the counts that have a loop of their own, because the reference
        // is slow.
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

TEST_CASE("Reduce: the result is right for more inputs than are read at a time", "[reduce]") {
  Random random(2);
  for (const DType dtype : kAllDTypes) {
    // Two tiles, some blocks of a third one, and a rest.
    const size_t length = (2 * 4096 + 1600) / DTypeSize(dtype) + 3;
    for (const Op op : kAllOps) {
      if (!IsReduction(dtype, op)) continue;
      for (const size_t inputs : {5, 6, 7, 8, 9, 13, 33}) {
        std::vector<float> weights;
        for (size_t i = 0; op == Op::kAverage && i < inputs; ++i) {
          weights.push_back(static_cast<float>(2 + i));
        }
        const uint32_t divisor = op == Op::kAverage ? 7 : 1;
        const Case made = MakeCase(dtype, op, inputs, weights, divisor, length, random);
        for (const Isa isa : SupportedIsas()) {
          for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
            for (const auto& [layout, in_place] : kPlacements) {
              const std::string wrong = Try(made, isa, stores, layout, in_place, 0, length);
              if (!wrong.empty()) FAIL(wrong);
            }
          }
        }
      }
    }
  }
  SUCCEED();
}

TEST_CASE("Reduce: averages are right by any divisor, with and without weights", "[reduce]") {
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

TEST_CASE("Reduce: weights of 1 mean the same as no weights", "[reduce]") {
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
    const Op op = OpDefined(dtype, Op::kSum) ? Op::kSum : Op::kMax;
    const Case made = MakeCase(dtype, op, 3, {}, 1, 4099, random);
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

// Scales elements [first, first + count) of `from`. Returns kNothing, or what was wrong.
std::string TryScale(DType dtype, double factor, Isa isa, const std::vector<std::byte>& from,
                     const std::vector<std::byte>& expected, Layout layout, bool in_place,
                     size_t first, size_t count) {
  const size_t size = DTypeSize(dtype);
  const size_t bytes = count * size;
  Placed input(OffsetOf(layout, 0, size), bytes);
  Placed apart(OffsetOf(layout, 1, size), bytes);
  if (bytes != 0) std::memcpy(input.data(), &from[first * size], bytes);
  std::byte* const output = in_place ? input.data() : apart.data();
  Scale(dtype, factor, input.data(), output, count, isa);

  std::ostringstream what;
  what << DTypeName(dtype) << " times " << factor << ", " << IsaName(isa) << ", " << count
       << " elements, layout " << static_cast<int>(layout) << (in_place ? ", in place" : "")
       << ": ";
  if (!input.GuardsAreIntact() || !apart.GuardsAreIntact()) {
    return what.str() + "written beside its memory";
  }
  if (bytes == 0) return kNothing;
  if (!in_place && std::memcmp(input.data(), &from[first * size], bytes) != 0) {
    return what.str() + "written into the input";
  }
  for (size_t e = 0; e < count; ++e) {
    const uint64_t want = LoadBits(dtype, &expected[(first + e) * size]);
    const uint64_t got = LoadBits(dtype, output + e * size);
    if (want == got) continue;
    what << std::hex << "of " << LoadBits(dtype, &from[(first + e) * size]) << " want " << want
         << ", got " << got;
    return what.str();
  }
  return kNothing;
}

constexpr double kFactors[] = {0.5,
                               -1,
                               3,
                               1.0 / 3,
                               0,
                               -0.0,
                               1 + 0x1p-52,  // This is 1 in float32.
                               255.99,
                               65536,
                               -1e9,
                               1e30,
                               1e-30,
                               1e-320,
                               std::numeric_limits<double>::max(),
                               std::numeric_limits<double>::infinity(),
                               -std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN()};

TEST_CASE("Scale: the result is right for every dtype, ISA, factor, length and alignment",
          "[reduce]") {
  Random random(8);
  for (const DType dtype : kAllDTypes) {
    if (!IsScalable(dtype)) continue;
    const size_t size = DTypeSize(dtype);
    for (const double factor : kFactors) {
      std::vector<std::byte> from(kLengthMax * size);
      std::vector<std::byte> expected(from.size());
      for (size_t e = 0; e < kLengthMax; ++e) {
        const uint64_t bits = InterestingBits(dtype, random);
        StoreBits(dtype, bits, &from[e * size]);
        StoreBits(dtype, testing::ScaleElement(dtype, factor, bits), &expected[e * size]);
      }
      for (const Isa isa : SupportedIsas()) {
        for (const size_t length : kLengths) {
          const size_t first = random.Below(kLengthMax - length + 1);
          for (const auto& [layout, in_place] : kPlacements) {
            const std::string wrong =
                TryScale(dtype, factor, isa, from, expected, layout, in_place, first, length);
            if (!wrong.empty()) FAIL(wrong);
          }
        }
      }
    }
  }
  SUCCEED();
}

}  // namespace
}  // namespace talweg::reduce
