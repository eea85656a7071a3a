// SPDX-License-Identifier: Apache-2.0
#include "libs/encoding/rounding.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/random.h"
#include "libs/encoding/codec.h"

namespace talweg::encoding {
namespace {

constexpr size_t kBlock = 256;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Floats = std::vector<float>;
using Buffer = std::vector<std::byte>;

std::span<const std::byte> BytesOf(const Floats& floats) {
  return std::as_bytes(std::span(floats));
}

Buffer AsInt8(const Floats& floats, uint64_t seed = 1, reduce::Isa isa = reduce::BestIsa()) {
  Buffer out(floats.size() * 4);
  out.resize(EncodeInt8(BytesOf(floats), seed, out, isa));
  return out;
}

bool Decodes(const Buffer& encoded, Floats& floats, reduce::Isa isa = reduce::BestIsa()) {
  return DecodeInt8(encoded, std::as_writable_bytes(std::span(floats)), isa);
}

Floats Back(const Buffer& encoded, size_t count, reduce::Isa isa = reduce::BestIsa()) {
  Floats floats(count, -7.0f);
  REQUIRE(Decodes(encoded, floats, isa));
  return floats;
}

Floats AsBf16AndBack(const Floats& floats, reduce::Isa isa = reduce::BestIsa()) {
  Buffer encoded(floats.size() * 4);
  encoded.resize(EncodeBf16(BytesOf(floats), encoded, isa));
  REQUIRE(encoded.size() == floats.size() * 2);
  Floats back(floats.size(), -7.0f);
  REQUIRE(DecodeBf16(encoded, std::as_writable_bytes(std::span(back)), isa));
  return back;
}

// Numbers of both signs whose magnitudes lie within eight powers of two.
Floats Drawn(size_t count, uint64_t seed) {
  Random random(seed);
  Floats floats(count);
  for (float& each : floats) {
    each = std::ldexp(static_cast<float>(random.Below(1 << 20)) / (1 << 19) - 1.0f,
                      static_cast<int>(random.Below(8)));
  }
  return floats;
}

float GreatestOfBlock(const Floats& floats, size_t place) {
  float greatest = 0;
  const size_t begin = place / kBlock * kBlock;
  for (size_t i = begin; i < std::min(floats.size(), begin + kBlock); ++i) {
    greatest = std::max(greatest, std::abs(floats[i]));
  }
  return greatest;
}

bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

TEST_CASE("int8: a quarter of the bytes, and no number is off by a whole level", "[encoding]") {
  for (const size_t count : {5u, 255u, 256u, 257u, 1000u, 100'000u}) {
    const Floats floats = Drawn(count, count);
    const Buffer encoded = AsInt8(floats);
    CHECK(encoded.size() == (count + kBlock - 1) / kBlock * 4 + count);
    const Floats back = Back(encoded, count);
    for (size_t i = 0; i < count; ++i) {
      CAPTURE(count, i, floats[i], back[i]);
      REQUIRE(std::abs(back[i] - floats[i]) <= GreatestOfBlock(floats, i) / 127 * 1.0001f);
    }
  }
}

TEST_CASE("int8: the mean over many seeds is the number", "[encoding]") {
  const Floats floats = Drawn(kBlock, 3);
  const float level = GreatestOfBlock(floats, 0) / 127;
  constexpr int kSeeds = 4000;
  std::vector<double> sums(kBlock);
  for (int seed = 0; seed < kSeeds; ++seed) {
    const Floats back = Back(AsInt8(floats, SeedOf(Round{uint64_t(seed)}, 0, 0)), kBlock);
    for (size_t i = 0; i < kBlock; ++i) sums[i] += back[i];
  }
  // A number lies at most half a level from its mean, so five standard errors are 2.5 levels over
  // the root of the number of seeds: of 256 numbers none is beyond them but once in 10,000 tests.
  const double bound = 2.5 * level / std::sqrt(kSeeds);
  for (size_t i = 0; i < kBlock; ++i) {
    CAPTURE(i, floats[i], sums[i] / kSeeds);
    CHECK(std::abs(sums[i] / kSeeds - floats[i]) < bound);
  }
}

TEST_CASE("int8: errors of neighbours, rounds and givers have nothing in common", "[encoding]") {
  constexpr size_t kCount = 1 << 16;
  const Floats floats(kCount, 0.3f);
  Floats scaled = floats;
  for (size_t i = 0; i < kCount; i += kBlock) scaled[i] = 100.0f;  // 0.3 is 0.381 levels.
  const auto errors = [&](uint64_t seed) {
    Floats back = Back(AsInt8(scaled, seed), kCount);
    for (size_t i = 0; i < kCount; ++i) back[i] -= scaled[i];
    return back;
  };
  const auto correlation = [&](const Floats& a, const Floats& b, size_t shift) {
    double products = 0;
    double squares = 0;
    for (size_t i = 0; i + shift < kCount; ++i) {
      products += double{a[i]} * b[i + shift];
      squares += double{a[i]} * a[i];
    }
    return std::abs(products / squares);
  };
  const Floats first = errors(SeedOf(Round{7}, 0, 0));
  const double bound = 5 / std::sqrt(double{kCount});
  for (const size_t shift : {1u, 2u, 3u, 4u, 8u, 16u, 256u}) {
    CAPTURE(shift);
    CHECK(correlation(first, first, shift) < bound);
  }
  CHECK(correlation(first, errors(SeedOf(Round{8}, 0, 0)), 0) < bound);
  CHECK(correlation(first, errors(SeedOf(Round{7}, 0, 1)), 0) < bound);
  CHECK(correlation(first, errors(SeedOf(Round{7}, 4 * kCount, 0)), 0) < bound);
  CHECK(correlation(first, errors(SeedOf(Round{7}, 0, kSumGiver)), 0) < bound);
}

TEST_CASE("Rounding has the same bits on every instruction set", "[encoding]") {
  for (const size_t count : {3u, 256u, 1000u, 5000u}) {
    Floats floats = Drawn(count, count + 1);
    if (count > 600) {
      floats[300] = kNan;
      std::fill_n(floats.begin() + 512, 100, 0.0f);
    }
    const Buffer encoded = AsInt8(floats, 11, reduce::Isa::kPortable);
    const Floats back = Back(encoded, count, reduce::Isa::kPortable);
    const Floats halves = AsBf16AndBack(floats, reduce::Isa::kPortable);
    for (const reduce::Isa isa : reduce::kAllIsas) {
      if (!reduce::IsSupported(isa)) continue;
      CAPTURE(count, reduce::IsaName(isa));
      CHECK(AsInt8(floats, 11, isa) == encoded);
      CHECK(SameBits(Back(encoded, count, isa), back));
      CHECK(SameBits(AsBf16AndBack(floats, isa), halves));
    }
  }
}

TEST_CASE("int8: the same seed gives the same bytes, another one others", "[encoding]") {
  const Floats floats = Drawn(1000, 9);
  CHECK(AsInt8(floats, 5) == AsInt8(floats, 5));
  CHECK(AsInt8(floats, 5) != AsInt8(floats, 6));
}

TEST_CASE("int8: blocks of zeros take no bytes, and what is not finite comes as it is",
          "[encoding]") {
  Floats floats = Drawn(5 * kBlock, 4);
  std::fill_n(floats.begin(), 2 * kBlock, 0.0f);
  floats[kBlock] = -0.0f;
  CHECK(AsInt8(floats).size() == 5 * 4 + 3 * kBlock);
  for (const float odd : {kNan, kInfinity, -kInfinity}) {
    floats[3 * kBlock + 5] = odd;
    const Buffer encoded = AsInt8(floats);
    CHECK(encoded.size() == 5 * 4 + 2 * kBlock + 4 * kBlock);
    const Floats back = Back(encoded, floats.size());
    CHECK(SameBits({back.begin() + 3 * kBlock, back.begin() + 4 * kBlock},
                   {floats.begin() + 3 * kBlock, floats.begin() + 4 * kBlock}));
  }
  // Nothing is shorter than what is not finite everywhere.
  const Floats infinite(600, kInfinity);
  CHECK(AsInt8(infinite).size() == 2400);
  CHECK(SameBits(Back(AsInt8(infinite), 600), infinite));
  const Floats three = {1, 2, 3};
  CHECK(AsInt8(three).size() == 3 + 4);
  CHECK(AsInt8({1.5f}).size() == 4);
}

TEST_CASE("int8: the greatest and the least numbers survive", "[encoding]") {
  constexpr float kMax = std::numeric_limits<float>::max();
  constexpr float kLeast = std::numeric_limits<float>::denorm_min();
  Floats floats(kBlock, kMax);
  floats[1] = -kMax;
  CHECK(SameBits(Back(AsInt8(floats), kBlock), floats));
  std::fill(floats.begin(), floats.end(), 0x1.fffffep126f);
  for (const float each : Back(AsInt8(floats), kBlock)) {
    REQUIRE(std::abs(each - floats[0]) <= floats[0] * 0x1p-6f);
  }
  const Floats tiny = {kLeast, -3 * kLeast, 0x1p-120f, 0, 0, 0, 0, 0};
  CHECK(SameBits(Back(AsInt8(tiny), tiny.size()), tiny));
}

TEST_CASE("int8: what is no encoding of so many bytes is refused", "[encoding]") {
  const Floats floats = Drawn(600, 8);
  const Buffer good = AsInt8(floats);
  Floats back(600);
  const auto refused = [&](const Buffer& encoded) { return !Decodes(encoded, back); };
  CHECK_FALSE(refused(good));
  CHECK(refused({}));
  CHECK(refused(Buffer(good.begin(), good.end() - 1)));
  CHECK(refused(Buffer(good.begin(), good.begin() + 11)));
  Buffer longer = good;
  longer.push_back(std::byte{0});
  CHECK(refused(longer));
  for (const float scale : {-1.0f, kInfinity, -kInfinity, -0.0f, -kNan}) {
    Buffer damaged = good;
    std::memcpy(damaged.data() + 4, &scale, sizeof scale);
    CAPTURE(scale);
    CHECK(refused(damaged));
  }
  Buffer no_bytes = good;
  const float zero = 0;
  std::memcpy(no_bytes.data(), &zero, sizeof zero);
  CHECK(refused(no_bytes));  // 256 bytes more than its scales ask for.
}

TEST_CASE("bf16: to nearest, ties to even, and a NaN stays one", "[encoding]") {
  const auto of = [](uint32_t bits) { return std::bit_cast<float>(bits); };
  const Floats floats = {of(0x3f800000), of(0x3f807fff), of(0x3f808000), of(0x3f808001),
                         of(0x3f818000), of(0x7f7fffff), of(0x80000001), of(0x7f800001),
                         kInfinity,      -kInfinity,     of(0xff800001)};
  const Floats expected = {of(0x3f800000), of(0x3f800000), of(0x3f800000), of(0x3f810000),
                           of(0x3f820000), kInfinity,      of(0x80000000), of(0x7fc00000),
                           kInfinity,      -kInfinity,     of(0xffc00000)};
  CHECK(SameBits(AsBf16AndBack(floats), expected));
  const Floats many = Drawn(1001, 2);
  const Floats back = AsBf16AndBack(many);
  for (size_t i = 0; i < many.size(); ++i) {
    REQUIRE(std::abs(back[i] - many[i]) <= std::abs(many[i]) * 0x1p-8f);
  }
}

TEST_CASE("Bytes that are no whole numbers travel as they are", "[encoding]") {
  const Buffer odd(7, std::byte{3});
  for (const Encoding encoding : {Encoding::kBf16, Encoding::kInt8}) {
    Buffer out(kCacheLineBytes);
    out.resize(Codecs().Encode(encoding, 0, odd, out));
    CHECK(out == odd);
    Buffer back(7);
    CHECK(Codecs().Decode(encoding, out, back));
    CHECK(back == odd);
  }
}

}  // namespace
}  // namespace talweg::encoding
