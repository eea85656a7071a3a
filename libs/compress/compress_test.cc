// SPDX-License-Identifier: Apache-2.0
#include "libs/compress/compress.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/random.h"
#include "libs/compress/scalar_reference.h"
#include "libs/reduce/isa.h"

namespace talweg::compress {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

constexpr Spec kTop3 = {.kind = Kind::kTopK, .k = 3};
constexpr Spec kRandom3 = {.kind = Kind::kRandomK, .k = 3, .key = 5};
constexpr Spec kScaled = {.kind = Kind::kOneBit, .scaling = true};
constexpr Spec kLinear = {.kind = Kind::kDithering, .k = 4, .key = 9};

const std::vector<Spec>& AllSpecs() {
  static const std::vector<Spec> specs = {
      kTop3,
      {.kind = Kind::kTopK, .k = 0.01},
      {.kind = Kind::kTopK, .k = 7, .partition = 100},
      kRandom3,
      {.kind = Kind::kRandomK, .k = 0.3, .partition = 77, .key = 6},
      kScaled,
      {.kind = Kind::kOneBit},
      {.kind = Kind::kOneBit, .partition = 1000, .scaling = true},
      kLinear,
      {.kind = Kind::kDithering, .k = 127, .partition = 1025, .key = 1, .l2 = true},
      {.kind = Kind::kDithering, .k = 3, .key = 2, .natural = true},
      {.kind = Kind::kDithering, .k = 31, .key = 3, .natural = true, .l2 = true},
  };
  return specs;
}

std::string NameOf(const Spec& spec) {
  return "kind " + std::to_string(static_cast<int>(spec.kind)) + ", k " + std::to_string(spec.k) +
         ", partition " + std::to_string(spec.partition) + (spec.natural ? ", natural" : "") +
         (spec.l2 ? ", l2" : "");
}

// Numbers of many sizes, with ties and zeros.
std::vector<float> Numbers(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> numbers(count);
  for (float& number : numbers) {
    const auto exponent = static_cast<int>(random.Below(12)) - 6;
    number = std::ldexp(static_cast<float>(random.Below(64)) - 32, exponent);
  }
  return numbers;
}

void Run(const Spec& spec, const Memory& factors, Tensor& tensor,
         reduce::Isa isa = reduce::BestIsa()) {
  Memory memory = factors;
  memory.error = tensor.error.empty() ? nullptr : tensor.error.data();
  memory.momentum = tensor.momentum.empty() ? nullptr : tensor.momentum.data();
  Compress(spec, tensor.values.data(), tensor.values.size(), memory, isa);
}

Tensor Compressed(const Spec& spec, std::vector<float> values) {
  Tensor tensor = {.values = values, .error = std::vector<float>(values.size()), .momentum = {}};
  Run(spec, {}, tensor);
  return tensor;
}

bool HaveEqualBits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y) ||
           (std::isnan(x) && std::isnan(y));
  });
}

size_t NonZeros(const std::vector<float>& values) {
  return values.size() - static_cast<size_t>(std::count(values.begin(), values.end(), 0.0F));
}

TEST_CASE("Compress: it does what the rules say, to the last bit", "[compress]") {
  const Memory factors = {.error_scale = 0.3F, .mu = 0.9F};
  for (const Spec& spec : AllSpecs()) {
    for (const size_t count : {1, 2, 7, 100, 1023, 1024, 1025, 5000}) {
      for (const int memories : {0, 1, 2, 3}) {
        INFO(NameOf(spec) << ", " << count << " numbers, memories " << memories);
        Tensor tensor = {.values = Numbers(count, 1), .error = {}, .momentum = {}};
        if ((memories & 1) != 0) tensor.error = Numbers(count, 2);
        if ((memories & 2) != 0) tensor.momentum = Numbers(count, 3);
        Tensor expected = tensor;
        CompressByRules(spec, factors, expected);
        for (const reduce::Isa isa : reduce::kAllIsas) {
          if (!reduce::IsSupported(isa)) continue;
          INFO(reduce::IsaName(isa));
          Tensor own = tensor;
          Run(spec, factors, own, isa);
          CHECK(HaveEqualBits(own.values, expected.values));
          CHECK(HaveEqualBits(own.error, expected.error));
          CHECK(HaveEqualBits(own.momentum, expected.momentum));
        }
      }
    }
  }
}

TEST_CASE("Compress: it does so with NaNs and infinities among the numbers", "[compress]") {
  for (const Spec& spec : AllSpecs()) {
    INFO(NameOf(spec));
    Tensor tensor = {.values = Numbers(3000, 4), .error = Numbers(3000, 5), .momentum = {}};
    for (const size_t place : {5, 900, 2999}) tensor.values[place] = kNan;
    tensor.values[1500] = -kInf;
    Tensor expected = tensor;
    Run(spec, {}, tensor);
    if (spec.kind != Kind::kTopK) {
      CompressByRules(spec, {}, expected);
      CHECK(HaveEqualBits(tensor.values, expected.values));
    }
    for (const size_t place : {5, 900, 2999}) CHECK(std::isnan(tensor.values[place]));
    CHECK(tensor.values[1500] == -kInf);
    CHECK(std::all_of(tensor.error.begin(), tensor.error.end(),
                      [](float x) { return std::isfinite(x); }));
    CHECK(tensor.error[5] == 0);
    CHECK(tensor.error[1500] == 0);
  }
}

TEST_CASE("Compress: a momentum that has met a NaN is finite again", "[compress]") {
  Tensor tensor = {.values = {kNan, 1}, .error = {}, .momentum = {2, 2}};
  Run(kScaled, {.mu = 0.5F}, tensor);
  CHECK(std::isnan(tensor.values[0]));
  CHECK(tensor.momentum == std::vector<float>{0, 2});
}

TEST_CASE("Compress: no number, and zeros only, come out as zeros", "[compress]") {
  for (const Spec& spec : AllSpecs()) {
    INFO(NameOf(spec));
    CHECK(Compressed(spec, {}).values.empty());
    if (spec.kind == Kind::kOneBit && !spec.scaling) continue;
    const Tensor tensor = Compressed(spec, {0, 0, -0.0F, 0, 0});
    CHECK(NonZeros(tensor.values) == 0);
    CHECK(NonZeros(tensor.error) == 0);
  }
}

TEST_CASE("topk: exactly k numbers stay, and the first of equal ones", "[compress]") {
  CHECK(Compressed(kTop3, {1, -2, 2, 0, 2, -2}).values == std::vector<float>{0, -2, 2, 0, 2, 0});
  CHECK(Compressed(kTop3, {1, -2, 2, 0, 2, -2}).error == std::vector<float>{1, 0, 0, 0, 0, -2});
  CHECK(Compressed(kTop3, {5}).values == std::vector<float>{5});
  for (const size_t k : {1, 10, 2500, 4999, 5000}) {
    Spec spec = kTop3;
    spec.k = static_cast<double>(k);
    std::vector<float> numbers = Numbers(5000, 7);
    for (float& number : numbers) number = number == 0 ? 1 : number;
    CHECK(NonZeros(Compressed(spec, numbers).values) == k);
  }
}

TEST_CASE("topk: a fraction keeps at least one number of each partition", "[compress]") {
  const Spec spec = {.kind = Kind::kTopK, .k = 0.001, .partition = 4};
  CHECK(Compressed(spec, {1, 2, 3, 4, 8, 7, 6, 5, 1}).values ==
        std::vector<float>{0, 0, 0, 4, 8, 0, 0, 0, 1});
}

TEST_CASE("topk: NaNs come first, and more than k of them all stay", "[compress]") {
  Spec one = kTop3;
  one.k = 1;
  const Tensor tensor = Compressed(one, {9, kNan, kInf, kNan, 1});
  CHECK(tensor.values[0] == 0);
  CHECK(std::isnan(tensor.values[1]));
  CHECK(tensor.values[2] == kInf);
  CHECK(std::isnan(tensor.values[3]));
  CHECK(tensor.error == std::vector<float>{9, 0, 0, 0, 1});
}

TEST_CASE("randomk: k places stay, whatever lies there; each is as likely", "[compress]") {
  std::vector<int> kept(50, 0);
  Spec spec = {.kind = Kind::kRandomK, .k = 10};
  for (spec.key = 0; spec.key < 2000; ++spec.key) {
    const std::vector<float> sent = Compressed(spec, std::vector<float>(50, 1.0F)).values;
    REQUIRE(NonZeros(sent) == 10);
    for (size_t i = 0; i < sent.size(); ++i) kept[i] += sent[i] != 0;
    std::vector<float> others = Numbers(50, spec.key);
    for (float& number : others) number = number == 0 ? 1 : number;
    const std::vector<float> same = Compressed(spec, others).values;
    for (size_t i = 0; i < sent.size(); ++i) REQUIRE((sent[i] != 0) == (same[i] != 0));
  }
  // 2000 draws of probability 1/5: a standard deviation is 18.
  for (const int times : kept) CHECK(std::abs(times - 400) < 90);
}

TEST_CASE("onebit: a zero counts as positive, and the scale is the mean magnitude", "[compress]") {
  CHECK(Compressed(kScaled, {1, -2, 0, -0.0F, 7}).values == std::vector<float>{2, -2, 2, 2, 2});
  CHECK(Compressed(kScaled, {1, -2, 0, -0.0F, 7}).error == std::vector<float>{-1, 0, -2, -2, 5});
  CHECK(Compressed({.kind = Kind::kOneBit}, {3, -2, 0}).values == std::vector<float>{1, -1, 1});
}

TEST_CASE("dithering: there are few values, and their mean is what was given", "[compress]") {
  for (const bool natural : {false, true}) {
    for (const bool l2 : {false, true}) {
      Spec spec = {.kind = Kind::kDithering, .k = 4, .natural = natural, .l2 = l2};
      const std::vector<float> numbers = {0.01F, -0.3F, 0.5F, 0.77F, -1};
      const double norm = l2 ? std::sqrt(0.0001 + 0.09 + 0.25 + 0.77 * 0.77 + 1) : 1;
      std::vector<double> sums(numbers.size(), 0.0);
      std::set<float> values;
      constexpr int kTimes = 20000;
      for (spec.key = 0; spec.key < kTimes; ++spec.key) {
        const std::vector<float> sent = Compressed(spec, numbers).values;
        for (size_t i = 0; i < sent.size(); ++i) sums[i] += sent[i];
        values.insert(sent.begin(), sent.end());
      }
      INFO("natural " << natural << ", l2 " << l2);
      CHECK(values.size() <= 9);
      for (size_t i = 0; i < numbers.size(); ++i) {
        // A gap is at most half of the norm, so a standard error is at most norm / 4 / 141.
        CHECK(std::fabs(sums[i] / kTimes - numbers[i]) < 4 * norm / 4 / 141);
      }
    }
  }
}

TEST_CASE("Compress: over many steps what was sent is what was given, but for the memory",
          "[compress]") {
  for (Spec spec : AllSpecs()) {
    INFO(NameOf(spec));
    if (spec.kind == Kind::kRandomK && spec.k < 1) continue;  // The same rule as kRandom3.
    constexpr size_t kCount = 200;
    constexpr int kSteps = 100;
    Tensor tensor = {.values = {}, .error = std::vector<float>(kCount, 0.0F), .momentum = {}};
    std::vector<double> given(kCount, 0.0), sent(kCount, 0.0);
    double rate = 0.1, last_rate = 0.1;
    for (int step = 0; step < kSteps; ++step, last_rate = rate) {
      if (step == kSteps / 2) rate = 0.01;
      spec.key = static_cast<uint64_t>(step);
      tensor.values = Numbers(kCount, static_cast<uint64_t>(step) + 100);
      for (size_t i = 0; i < kCount; ++i) given[i] += rate * tensor.values[i];
      Run(spec, {.error_scale = static_cast<float>(last_rate / rate)}, tensor);
      for (size_t i = 0; i < kCount; ++i) sent[i] += rate * tensor.values[i];
    }
    // Numbers are at most 1024, and what is remembered some thousands, of which f32 has 24 bits.
    for (size_t i = 0; i < kCount; ++i) {
      const double largest = std::max(1024.0, std::fabs(static_cast<double>(tensor.error[i])));
      CHECK(std::fabs(sent[i] + rate * tensor.error[i] - given[i]) < 0.1 * kSteps * largest * 4e-6);
    }
  }
}

TEST_CASE("IsValid: it knows which numbers each kind takes", "[compress]") {
  for (const Spec& spec : AllSpecs()) CHECK(IsValid(spec));
  CHECK_FALSE(IsValid({.kind = static_cast<Kind>(5), .k = 1}));
  for (const double k : {0.0, -1.0, std::nan("")}) {
    CHECK_FALSE(IsValid({.kind = Kind::kTopK, .k = k}));
    CHECK_FALSE(IsValid({.kind = Kind::kRandomK, .k = k}));
    CHECK_FALSE(IsValid({.kind = Kind::kDithering, .k = k}));
  }
  CHECK_FALSE(IsValid({.kind = Kind::kDithering, .k = 0.5}));
  CHECK_FALSE(IsValid({.kind = Kind::kDithering, .k = 2.5}));
  CHECK_FALSE(IsValid({.kind = Kind::kDithering, .k = 128}));
  CHECK_FALSE(IsValid({.kind = Kind::kDithering, .k = 32, .natural = true}));
}

}  // namespace
}  // namespace talweg::compress
