// SPDX-License-Identifier: Apache-2.0
#include "libs/encoding/few.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/random.h"
#include "libs/encoding/codec_fixture.h"

namespace talweg::encoding {
namespace {

Buffer AsFew(const Buffer& plain, uint64_t seed = 1) {
  return Encoded(Encoding::kFew, plain, seed);
}

Buffer AsInt8(const Buffer& plain, uint64_t seed = 1) {
  return Encoded(Encoding::kInt8, plain, seed);
}

bool Decodes(const Buffer& encoded, size_t bytes, Buffer& plain) {
  return encoding::Decodes(Encoding::kFew, encoded, bytes, plain);
}

void CheckBack(const Buffer& plain) { CheckComesBack(Encoding::kFew, plain); }

// Different floats around 0.
std::vector<uint32_t> Levels(size_t count) {
  std::vector<uint32_t> levels(count);
  for (size_t i = 0; i < count; ++i) {
    const auto level = static_cast<float>(i) - static_cast<float>(count) / 2;
    levels[i] = std::bit_cast<uint32_t>(level * 0.37f);
  }
  return levels;
}

// Each of `levels` at least once if there are as many numbers.
std::vector<uint32_t> Drawn(size_t count, const std::vector<uint32_t>& levels, Random& random) {
  std::vector<uint32_t> words(count);
  for (uint32_t& word : words) word = levels[random.Below(levels.size())];
  for (size_t i = 0; i < levels.size() && i < count; ++i) {
    std::swap(words[i], words[random.Below(i + 1)]);
    words[random.Below(i + 1)] = levels[i];
  }
  return words;
}

size_t DistinctCount(std::vector<uint32_t> words) {
  std::sort(words.begin(), words.end());
  return static_cast<size_t>(std::unique(words.begin(), words.end()) - words.begin());
}

TEST_CASE("few: numbers of each count of distinct ones come back", "[encoding]") {
  Random random(1);
  for (const size_t levels :
       {1u, 2u, 3u, 4u, 5u, 8u, 9u, 16u, 17u, 32u, 33u, 64u, 65u, 128u, 129u, 255u, 256u}) {
    for (const size_t count : {1u, 2u, 3u, 7u, 8u, 9u, 255u, 256u, 1000u, 1001u, 1007u, 30'000u}) {
      const std::vector<uint32_t> words = Drawn(count, Levels(levels), random);
      const size_t distinct = DistinctCount(words);
      CAPTURE(levels, count, distinct);
      const auto bits = static_cast<size_t>(std::bit_width(distinct - 1));
      const size_t bytes = 4 + (count * bits + 7) / 8 + 4 * distinct;
      CHECK(AsFew(BytesOf(words)).size() == std::min(bytes, 4 * count));
      CheckBack(BytesOf(words));
    }
  }
}

TEST_CASE("few: data of every length comes back", "[encoding]") {
  Random random(2);
  constexpr size_t kLevels[] = {1, 2, 3, 16, 17, 200};
  for (size_t bytes = 0; bytes <= 5000; ++bytes) {
    for (const size_t levels : kLevels) {
      if (bytes > 300 && levels != kLevels[bytes / 4 % std::size(kLevels)]) continue;
      CheckBack(BytesOf(Drawn(bytes / 4, Levels(levels), random), bytes % 4));
    }
  }
}

TEST_CASE("few: every bit counts", "[encoding]") {
  constexpr uint32_t kWords[] = {0, 0x80000000, 0x7fa12345, 0xffc00001, 0x7f800000, 1};
  std::vector<uint32_t> words;
  for (int i = 0; i < 200; ++i) words.insert(words.end(), std::begin(kWords), std::end(kWords));
  CHECK(AsFew(BytesOf(words)).size() == 4 + 1200 * 3 / 8 + 6 * 4);
  CheckBack(BytesOf(words));
}

TEST_CASE("few: two words take a bit for each number, and one word none", "[encoding]") {
  Random random(3);
  const Buffer two = BytesOf(Drawn(16 << 10, Levels(2), random));
  CHECK(AsFew(two).size() * 30 < two.size());
  CHECK(AsFew(BytesOf(std::vector<uint32_t>(1 << 18, 7))).size() == 8);
}

TEST_CASE("few: more than 256 distinct words travel as int8 does", "[encoding]") {
  Random random(4);
  for (const size_t levels : {257u, 300u, 10'000u}) {
    const Buffer plain = BytesOf(Drawn(20'000, Levels(levels), random));
    const Buffer encoded = AsFew(plain, 5);
    CHECK(encoded == AsInt8(plain, 5));
    CHECK(encoded != AsFew(plain, 6));
    Buffer back;
    Buffer expected;
    REQUIRE(Decodes(encoded, plain.size(), back));
    REQUIRE(encoding::Decodes(Encoding::kInt8, encoded, plain.size(), expected));
    CHECK(back == expected);
    CHECK(back != plain);
  }
  // Neither makes them shorter: they are not finite.
  std::vector<uint32_t> odd(300);
  for (uint32_t i = 0; i < odd.size(); ++i) odd[i] = 0x7f800000 + i;
  CHECK(AsFew(BytesOf(odd)) == BytesOf(odd));
}

TEST_CASE("few: of up to 256 distinct words none is rounded, whatever the seed", "[encoding]") {
  Random random(5);
  for (const size_t levels : {2u, 100u, 256u}) {
    const Buffer plain = BytesOf(Drawn(5000, Levels(levels), random));
    CHECK(Encoded(Encoding::kFew, plain, 1, std::byte{0}) ==
          Encoded(Encoding::kFew, plain, 2, std::byte{0xff}));
  }
}

TEST_CASE("few: words that first appear anywhere come back, on every instruction set",
          "[encoding]") {
  Random random(7);
  for (const size_t levels : {1u, 2u, 7u, 8u, 9u, 10u, 20u, 300u}) {
    // One more level every 300 numbers, in the middle of what is looked at together.
    std::vector<uint32_t> words(300 * levels);
    const std::vector<uint32_t> all = Levels(levels);
    for (size_t i = 0; i < words.size(); ++i) words[i] = all[random.Below(i / 300 + 1)];
    const Buffer plain = BytesOf(words);
    const Buffer encoded = AsFew(plain, 3);
    Buffer back;
    REQUIRE(Decodes(encoded, plain.size(), back));
    CHECK((back == plain) == (levels <= 256));
    for (const reduce::Isa isa : reduce::kAllIsas) {
      if (!reduce::IsSupported(isa)) continue;
      CAPTURE(levels, reduce::IsaName(isa));
      Buffer out(plain.size());
      out.resize(EncodeFew(plain, 3, out, isa));
      CHECK(out == encoded);
      Buffer own(plain.size());
      REQUIRE(DecodeFew(encoded, own, isa));
      CHECK(own == back);
    }
  }
}

TEST_CASE("few: one number that differs from all before it comes back", "[encoding]") {
  Random random(8);
  std::vector<uint32_t> words = Drawn(768, Levels(2), random);
  for (size_t place = 0; place < words.size(); ++place) {
    const uint32_t before = std::exchange(words[place], 5);
    CheckBack(BytesOf(words));
    words[place] = before;
  }
}

TEST_CASE("few: words that all want one place in the table are told apart", "[encoding]") {
  std::vector<uint32_t> words;
  for (uint32_t word = 0; words.size() < 256; ++word) {
    if (word * 0x9e3779b97f4a7c15u >> 53 == 2047) words.push_back(word);
  }
  Random random(6);
  CheckBack(BytesOf(Drawn(3000, words, random)));
}

TEST_CASE("few: the bytes are those of the format", "[encoding]") {
  std::vector<uint32_t> words = {9, 9, 7, 9, 5, 9, 9, 9, 9, 7};
  words.resize(18, 7);
  // Places 0 0 1 0 2 0 0 0 0 1, then 1: two bits for each.
  Buffer expected = BytesOf({0x80000003});
  for (const uint8_t each : {0x10, 0x02, 0x54, 0x55, 0x05}) expected.push_back(std::byte{each});
  for (const std::byte each : BytesOf({9, 7, 5})) expected.push_back(each);
  CHECK(AsFew(BytesOf(words)) == expected);
  CHECK(AsFew(BytesOf({4, 4, 4, 4})) == BytesOf({0x80000001, 4}));
}

TEST_CASE("few: what is no encoding of so many bytes is refused", "[encoding]") {
  Buffer back;
  const auto with = [](uint32_t header, const std::vector<uint8_t>& places,
                       const std::vector<uint32_t>& table) {
    Buffer bytes = BytesOf({header});
    for (const uint8_t place : places) bytes.push_back(std::byte{place});
    for (const std::byte each : BytesOf(table)) bytes.push_back(each);
    return bytes;
  };
  const auto refused = [&](const Buffer& encoded, size_t numbers = 10) {
    return !Decodes(encoded, 4 * numbers, back);
  };
  const uint32_t table = 0x80000000;
  CHECK_FALSE(refused(with(table | 3, {0x10, 0x02, 0x06}, {9, 7, 5})));
  CHECK(refused({}));
  CHECK(refused(Buffer(3)));
  CHECK(refused(with(table | 3, {0x30, 0x02, 0x06}, {9, 7, 5})));  // There is no fourth word.
  CHECK(refused(with(table | 3, {0x10, 0x02, 0x0e}, {9, 7, 5})));  // The same, at the end.
  CHECK(refused(with(table | 3, {0x10, 0x02, 0x46}, {9, 7, 5})));  // An eleventh number.
  CHECK(refused(with(table | 3, {0x10, 0x02}, {9, 7, 5})));
  CHECK(refused(with(table | 3, {0x10, 0x02, 0x06}, {9, 7})));
  CHECK(refused(with(table | 3, {0x10, 0x02, 0x06, 0}, {9, 7, 5})));
  CHECK(refused(with(table | 4, {0x10, 0x02, 0x06}, {9, 7, 5})));
  CHECK(refused(with(3, {0x10, 0x02, 0x06}, {9, 7, 5})));  // No table, nor int8.
  CHECK(refused(with(table, {}, {})));
  CHECK(refused(with(table | 257, std::vector<uint8_t>(2250), std::vector<uint32_t>(257)), 2000));
  CHECK(refused(with(0xffffffff, {}, {})));
  CHECK_FALSE(refused(with(table | 1, {}, {9})));
  CHECK(refused(with(table | 1, {}, {9}), 1));  // Longer than the data.
  for (const size_t bytes : {39u, 41u}) {       // The data is no whole numbers.
    CHECK_FALSE(Decodes(with(table | 1, {}, {9}), bytes, back));
  }
}

TEST_CASE("few: no damage is written beside the data", "[encoding]") {
  Random random(9);
  Buffer back;
  for (const size_t levels : {1u, 2u, 3u, 17u, 130u, 256u, 1000u}) {
    const Buffer plain = BytesOf(Drawn(1003, Levels(levels), random));
    const Buffer good = AsFew(plain);
    REQUIRE(good.size() < plain.size());
    for (size_t bytes = 0; bytes < good.size(); ++bytes) {
      CHECK_FALSE(Decodes(Buffer(good.begin(), good.begin() + static_cast<ptrdiff_t>(bytes)),
                          plain.size(), back));
    }
    for (size_t at = 0; at < good.size(); ++at) {
      Buffer damaged = good;
      damaged[at] ^= static_cast<std::byte>(1 + random.Below(255));
      (void)Decodes(damaged, plain.size(), back);
    }
  }
  for (int i = 0; i < 20'000; ++i) {
    const auto count = static_cast<uint32_t>(1 + random.Below(5));
    const size_t numbers = random.Below(400);
    const auto bits = static_cast<size_t>(std::bit_width(count - 1));
    Buffer garbage(4 + (numbers * bits + 7) / 8 + 4 * count);
    for (std::byte& each : garbage) each = static_cast<std::byte>(random.Next());
    const uint32_t header = 0x80000000 | count;
    std::memcpy(garbage.data(), &header, sizeof header);
    (void)Decodes(garbage, numbers * 4, back);
  }
}

}  // namespace
}  // namespace talweg::encoding
