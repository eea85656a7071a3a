// SPDX-License-Identifier: Apache-2.0
#include "libs/encoding/codec.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/random.h"
#include "libs/encoding/codec_fixture.h"

namespace talweg::encoding {
namespace {

void CheckBack(Encoding encoding, const Buffer& plain) {
  const Buffer encoded = Encoded(encoding, plain);
  CAPTURE(EncodingName(encoding), plain.size(), encoded.size());
  Buffer back;
  REQUIRE(Decodes(encoding, encoded, plain.size(), back));
  CHECK(back == plain);
}

TEST_CASE("Each encoding that does not round gives back what was encoded", "[encoding]") {
  const auto encoding = static_cast<Encoding>(GENERATE(range(0, int{kEncodings.size()})));
  if (Rounds(encoding)) return;
  Random random(7);
  for (int i = 0; i < 500; ++i) {
    std::vector<uint32_t> words(random.Below(200));
    // Runs of all lengths, and words that do not repeat.
    for (size_t at = 0; at < words.size();) {
      const auto word = static_cast<uint32_t>(random.OneIn(2) ? 0 : random.Next());
      const size_t end = std::min<size_t>(words.size(), at + 1 + random.Below(9));
      for (; at < end; ++at) words[at] = word;
    }
    CheckBack(encoding, BytesOf(words, random.Below(4)));
  }
}

TEST_CASE("Nothing takes nothing", "[encoding]") {
  for (size_t number = 0; number < kEncodings.size(); ++number) {
    const auto encoding = static_cast<Encoding>(number);
    CHECK(Encoded(encoding, {}).empty());
    CheckBack(encoding, {});
  }
}

TEST_CASE("Runs shrink what repeats, and never grow", "[encoding]") {
  CHECK(Encoded(Encoding::kRuns, BytesOf(std::vector<uint32_t>(1 << 20))).size() == 8);
  std::vector<uint32_t> words(1000);
  for (uint32_t i = 0; i < words.size(); ++i) words[i] = i;
  const Buffer plain = BytesOf(words, 3);
  CHECK(Encoded(Encoding::kRuns, plain) == plain);
  // One run among words that differ: two headers of words, and one of the run.
  for (size_t i = 100; i < 200; ++i) words[i] = 1;
  CHECK(Encoded(Encoding::kRuns, BytesOf(words)).size() == 4 * (900 + 3 + 1));
}

TEST_CASE("The bytes of a run are those of the format", "[encoding]") {
  const Buffer encoded = Encoded(Encoding::kRuns, BytesOf({9, 7, 7, 7, 7, 7}, 1));
  const std::vector<uint32_t> words = {1, 9, 0x80000005, 7};
  CHECK(encoded == BytesOf(words, 1));
}

TEST_CASE("Twice takes twice the bytes, and notices damage", "[encoding]") {
  const Buffer plain = BytesOf({1, 2, 3}, 1);
  Buffer encoded = Encoded(Encoding::kTwice, plain);
  REQUIRE(encoded.size() == 2 * plain.size());
  Buffer back;
  for (size_t i = 0; i < encoded.size(); ++i) {
    encoded[i] ^= std::byte{0x10};
    CHECK_FALSE(Decodes(Encoding::kTwice, encoded, plain.size(), back));
    encoded[i] ^= std::byte{0x10};
  }
  CHECK(Decodes(Encoding::kTwice, encoded, plain.size(), back));
}

TEST_CASE("What is no encoding of so many bytes is refused", "[encoding]") {
  Buffer back;
  const auto refused = [&](const Buffer& encoded, size_t bytes) {
    return !Decodes(Encoding::kRuns, encoded, bytes, back);
  };
  CHECK(refused(BytesOf({0x80000005}), 20));        // No word for the run.
  CHECK(refused(BytesOf({0x80000006, 7}), 20));     // A run past the end.
  CHECK(refused(BytesOf({0x80000000, 7}), 20));     // A run of nothing.
  CHECK(refused(BytesOf({0}), 20));                 // A record of nothing.
  CHECK(refused(BytesOf({3, 1, 2}), 20));           // Fewer words than it counts.
  CHECK(refused(BytesOf({0x80000004, 7}), 20));     // Ends before the data does.
  CHECK(refused(BytesOf({0x80000005, 7, 7}), 20));  // Goes on after it.
  CHECK(refused({}, 20));
  CHECK(refused(BytesOf({0x80000005, 7}, 2), 21));  // Another rest.
  CHECK_FALSE(refused(BytesOf({0x80000005, 7}, 1), 21));
  for (const Encoding encoding : {Encoding::kPlain, Encoding::kTwice}) {
    CHECK_FALSE(Decodes(encoding, BytesOf({1, 2, 3}), 8, back));
  }
}

TEST_CASE("The room of two slices is that of both together", "[encoding]") {
  for (size_t number = 0; number < kEncodings.size(); ++number) {
    const auto encoding = static_cast<Encoding>(number);
    for (uint64_t first = 0; first < 1000; first += kCacheLineBytes) {
      CHECK(TravelBytesMax(encoding, first) + TravelBytesMax(encoding, 777) ==
            TravelBytesMax(encoding, first + 777));
    }
  }
}

}  // namespace
}  // namespace talweg::encoding
