// SPDX-License-Identifier: Apache-2.0
#include "libs/encoding/gaps.h"

#include <cstdint>
#include <cstring>
#include <iterator>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/random.h"
#include "libs/encoding/codec_fixture.h"

namespace talweg::encoding {
namespace {

constexpr uint32_t kMinusZero = 0x80000000;
constexpr uint32_t kOddNan = 0x7fa12345;

Buffer AsGaps(const Buffer& plain) { return Encoded(Encoding::kGaps, plain); }

bool Decodes(const Buffer& encoded, size_t bytes, Buffer& plain) {
  return encoding::Decodes(Encoding::kGaps, encoded, bytes, plain);
}

void CheckBack(const Buffer& plain) { CheckComesBack(Encoding::kGaps, plain); }

// So many of 10,000 words are not 0, by chance. Bytes that are left are not 0 either.
Buffer Drawn(size_t bytes, uint32_t of_ten_thousand, Random& random) {
  std::vector<uint32_t> words(bytes / 4);
  for (uint32_t& word : words) {
    if (random.Below(10'000) < of_ten_thousand) word = static_cast<uint32_t>(random.Next() | 1);
  }
  return BytesOf(words, bytes % 4);
}

double PartOf(const Buffer& plain) {
  return static_cast<double>(AsGaps(plain).size()) / static_cast<double>(plain.size());
}

// One word, with so many zeros before it and some after it.
Buffer WithGap(size_t gap) {
  std::vector<uint32_t> words(gap + 100);
  words[gap] = 7;
  return BytesOf(words);
}

TEST_CASE("gaps: data of every length and density comes back", "[encoding]") {
  Random random(3);
  constexpr uint32_t kDensities[] = {0, 10, 100, 1000, 5000, 9900, 10'000};
  for (size_t bytes = 0; bytes <= 5000; ++bytes) {
    for (const uint32_t density : kDensities) {
      // Long data in one density each.
      if (bytes > 300 && density != kDensities[bytes % std::size(kDensities)]) continue;
      CheckBack(Drawn(bytes, density, random));
    }
  }
  for (const uint32_t density : kDensities) CheckBack(Drawn((1 << 20) + 3, density, random));
}

TEST_CASE("gaps: every bit counts", "[encoding]") {
  std::vector<uint32_t> words(1000);
  words[3] = kMinusZero;
  words[500] = kOddNan;
  words[999] = 1;
  CHECK(AsGaps(BytesOf(words)).size() == 4 + 3 * 4 + 1 + 2 + 2);
  CheckBack(BytesOf(words));
}

TEST_CASE("gaps: gaps of all lengths, at both ends of those that take as many bytes",
          "[encoding]") {
  for (const size_t gap : {0u, 1u, 31u, 32u, 33u, 190u, 191u, 192u, 193u, 447u, 448u, 449u, 16'318u,
                           16'319u, 16'320u, 16'321u, 100'000u}) {
    CAPTURE(gap);
    const Buffer plain = WithGap(gap);
    const size_t gap_bytes = gap < 192 ? 1 : gap < 16'320 ? 2 : 5;
    CHECK(AsGaps(plain).size() == 4 + 4 + gap_bytes);
    CheckBack(plain);
  }
}

TEST_CASE("gaps: what is mostly zeros takes about five bytes a number, and nothing ever grows",
          "[encoding]") {
  Random random(5);
  const auto part = [&](uint32_t density) { return PartOf(Drawn(256 << 10, density, random)); };
  CHECK(AsGaps(Buffer(1 << 20)).size() == 4);
  CHECK(part(10) < 0.0016);
  CHECK(part(100) < 0.0535);  // 5.35 bytes a number.
  CHECK(part(1000) < 0.13);
  CHECK(part(5000) < 0.54);
  CHECK(part(9000) < 0.94);
  CHECK(part(10'000) == 1);
}

TEST_CASE("gaps: equal data has equal bytes", "[encoding]") {
  Random random(6);
  for (const uint32_t density : {100u, 5000u}) {
    const Buffer plain = Drawn(10'001, density, random);
    CHECK(Encoded(Encoding::kGaps, plain, 1, std::byte{0}) ==
          Encoded(Encoding::kGaps, plain, 2, std::byte{0xff}));
  }
}

TEST_CASE("gaps: the bytes are those of the format", "[encoding]") {
  const auto with_places = [](std::vector<uint32_t> words, const std::vector<uint8_t>& places) {
    Buffer bytes = BytesOf(words);
    for (const uint8_t place : places) bytes.push_back(std::byte{place});
    return bytes;
  };
  std::vector<uint32_t> words(20'000);
  words[2] = 8;
  words[3] = 9;
  words[196 + 256] = 10;     // A gap of 448, which is 192 and 256.
  words[453 + 16'321] = 11;  // A gap of 16,321.
  CHECK(AsGaps(BytesOf(words)) ==
        with_places({4, 8, 9, 10, 11}, {2, 0, 193, 0, 255, 0xc1, 0x3f, 0, 0}));
  words.assign(12, 0);
  words[1] = 5;
  words[2] = 6;
  words[11] = 7;
  Buffer bits = with_places({3, 5, 6, 7}, {0x06, 0x08});
  CHECK(AsGaps(BytesOf(words)) == bits);
  for (int i = 0; i < 3; ++i) bits.push_back(std::byte{0x5a});
  CHECK(AsGaps(BytesOf(words, 3)) == bits);
}

TEST_CASE("gaps: what is no encoding of so many bytes is refused", "[encoding]") {
  Buffer back;
  const auto with = [](const std::vector<uint32_t>& words, const std::vector<int>& places) {
    Buffer bytes = BytesOf(words);
    for (const int place : places) bytes.push_back(static_cast<std::byte>(place));
    return bytes;
  };
  // 400 words: their bits would take 50 bytes.
  const auto refused = [&](const Buffer& encoded, size_t bytes = 1600) {
    return !Decodes(encoded, bytes, back);
  };
  CHECK_FALSE(refused(with({1, 7}, {192, 207})));
  CHECK_FALSE(refused(with({0}, {})));
  CHECK(refused({}));
  CHECK(refused(with({}, {0, 0, 0})));             // No count.
  CHECK(refused(with({1, 7}, {192, 208})));        // A word after the end.
  CHECK(refused(with({2, 7, 8}, {192, 207, 0})));  // The same, when the gap is 0.
  CHECK(refused(with({1, 7}, {})));                // No gap.
  CHECK(refused(with({1, 7}, {192})));             // Half of one.
  CHECK(refused(with({1, 7}, {255, 1, 0, 0})));
  CHECK(refused(with({1, 7}, {255, 1, 0, 0, 0})));     // A gap in more bytes than it needs.
  CHECK(refused(with({1, 7}, {1, 1})));                // Too many gaps.
  CHECK(refused(with({2, 7}, {1, 1})));                // Too few words.
  CHECK(refused(with({1, 0}, {1})));                   // A word that is 0.
  CHECK(refused(with({0xffffffff, 7}, {1})));          // A count that does not fit into memory.
  CHECK(refused(with({0}, std::vector<int>(51, 0))));  // More than the bits take.
  CHECK_FALSE(refused(with({0}, std::vector<int>(50, 0))));
  CHECK(refused(with({1, 7}, {255, 0xbf, 0x3f, 0, 0}), 80'000));  // 16,319: the same.
  CHECK_FALSE(refused(with({1, 7}, {255, 0xc0, 0x3f, 0, 0}), 80'000));
  CHECK(refused(with({2, 7, 8}, {3}), 8));            // Longer than the data.
  CHECK(refused(with({3, 5, 6, 7}, {1, 0, 8}), 48));  // Gaps that are longer than bits.
  // 12 words, as bits.
  CHECK_FALSE(refused(with({1, 7}, {0, 8}), 48));
  CHECK(refused(with({1, 7}, {0, 16}), 48));       // A bit after the end.
  CHECK(refused(with({1, 7}, {1, 8}), 48));        // More bits than words.
  CHECK(refused(with({2, 7, 8}, {0, 8}), 48));     // Fewer.
  CHECK(refused(with({1, 0}, {0, 8}), 48));        // A word that is 0.
  CHECK(refused(with({1, 7}, {0, 8, 0x5a}), 48));  // A rest that the data does not have.
  CHECK_FALSE(refused(with({1, 7}, {0, 8, 0x5a}), 49));
}

TEST_CASE("gaps: no damage is written beside the data", "[encoding]") {
  Random random(9);
  Buffer back;
  for (const uint32_t density : {30u, 300u, 4000u}) {
    const Buffer plain = Drawn(2003, density, random);
    const Buffer good = AsGaps(plain);
    REQUIRE(good.size() < plain.size());
    for (size_t bytes = 0; bytes < good.size(); ++bytes) {
      CHECK_FALSE(Decodes(Buffer(good.begin(), good.begin() + static_cast<ptrdiff_t>(bytes)),
                          plain.size(), back));
    }
    for (size_t at = 0; at < good.size(); ++at) {
      Buffer damaged = good;
      damaged[at] ^= static_cast<std::byte>(1 + random.Below(255));
      // What it says then is something else.
      if (Decodes(damaged, plain.size(), back)) CHECK(back != plain);
    }
  }
  for (int i = 0; i < 20'000; ++i) {
    Buffer garbage(random.Below(60));
    for (std::byte& each : garbage) each = static_cast<std::byte>(random.Next());
    // A count that may be right.
    if (garbage.size() > 4) {
      const auto count = static_cast<uint32_t>(random.Below(garbage.size() / 4));
      std::memcpy(garbage.data(), &count, sizeof count);
    }
    (void)Decodes(garbage, garbage.size() + random.Below(2000), back);
  }
}

}  // namespace
}  // namespace talweg::encoding
