// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/tcp/aes_gcm.h"

#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <string_view>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/transport/tcp/aes_gcm_testing.h"

namespace talweg::transport {
namespace {

using Bytes = std::vector<std::byte>;

template <size_t kSize>
std::array<std::byte, kSize> ArrayOf(std::string_view hex) {
  const Bytes bytes = Hex(hex);
  REQUIRE(bytes.size() == kSize);
  std::array<std::byte, kSize> array{};
  std::copy(bytes.begin(), bytes.end(), array.begin());
  return array;
}

// Returns AesCodes(), and prints which code is missing.
std::vector<AesCode> Codes() {
  if (FastestAesCode() == AesCode::kOpenSsl) {
    WARN("skipped: libipsec-mb is not installed, or this CPU has no VAES");
  }
  return AesCodes();
}

struct Published {
  Bytes key;
  Bytes sealed;
  std::array<std::byte, kTagBytes> tag;
};

// Test cases 4 and 16 of McGrew and Viega, "The Galois/Counter Mode of Operation".
const Bytes kPlain = Hex(
    "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b5"
    "25b16aedf5aa0de657ba637b39");
const Bytes kHeader = Hex("feedfacedeadbeeffeedfacedeadbeefabaddad2");
Published Case4() {
  return {Hex("feffe9928665731c6d6a8f9467308308"),
          Hex("42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e21d514b25466931c7d8f"
              "6a5aac84aa051ba30b396a0aac973d58e091"),
          ArrayOf<16>("5bc94fbc3221a5db94fae95ae7121a47")};
}
Published Case16() {
  return {Hex("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308"),
          Hex("522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b0"
              "8b1056828838c5f61e6393ba7a0abcc9f662"),
          ArrayOf<16>("76fc6ece0f4e1768cddf8853bb2d551b")};
}

TEST_CASE("AES-GCM: it says why there is no faster code", "[transport]") {
  const FasterAes found = LookForFasterAes();
  CAPTURE(found.problem);
  CHECK(found.problem.empty() == (FastestAesCode() == AesCode::kIpsecMb));
  if (found.problem.empty()) CHECK(found.cpu_can);
}

TEST_CASE("AES-GCM: it makes the published bytes", "[transport]") {
  const Published published = GENERATE(Case4(), Case16());
  const Bytes& key = published.key;
  const Bytes& expected = published.sealed;
  const Tag& tag = published.tag;
  const auto nonce = ArrayOf<12>("cafebabefacedbaddecaf888");
  const AesCode code = GENERATE(from_range(Codes()));
  CAPTURE(static_cast<int>(code), key.size());

  Bytes sealed(kPlain.size());
  const auto sealer = MakeAesGcm(code, key, AesGcm::Use::kSeals);
  sealer->Begin(nonce, kHeader);
  sealer->Crypt(kPlain, sealed.data());
  CHECK(sealer->MakeTag() == tag);
  CHECK(sealed == expected);

  Bytes opened(kPlain.size());
  const auto opener = MakeAesGcm(code, key, AesGcm::Use::kOpens);
  const auto fits = [&](const Bytes& header, const Bytes& bytes, const Tag& its_tag) {
    opener->Begin(nonce, header);
    opener->Crypt(bytes, opened.data());
    return opener->IsTag(its_tag);
  };
  CHECK(fits(kHeader, expected, tag));
  CHECK(opened == kPlain);
  for (size_t i = 0; i < tag.size(); ++i) {
    Tag other = tag;
    other[i] ^= std::byte{0x80};
    CHECK_FALSE(fits(kHeader, expected, other));
  }
  Bytes other = kHeader;
  other.back() ^= std::byte{1};
  CHECK_FALSE(fits(other, expected, tag));
  other = expected;
  other.front() ^= std::byte{1};
  CHECK_FALSE(fits(kHeader, other, tag));
  CHECK(fits(kHeader, expected, tag));
}

TEST_CASE("AES-GCM: all code makes the same bytes of the same pieces", "[transport]") {
  const std::vector<AesCode> codes = Codes();
  std::mt19937 random(GENERATE(range(0, 50)));
  const auto draw = [&](size_t most) {
    return std::uniform_int_distribution<size_t>(0, most)(random);
  };
  Bytes key(GENERATE(16, 32));
  AesNonce nonce;
  Bytes plain(draw(20'000));
  // A long header and nothing else is GMAC.
  Bytes header(draw(1) == 0 ? 5 : draw(70'000));
  if (draw(3) == 0) plain.clear();
  for (const std::span<std::byte> bytes :
       {std::span<std::byte>(key), std::span<std::byte>(nonce), std::span<std::byte>(plain),
        std::span<std::byte>(header)}) {
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
  }
  const auto crypt_in_pieces = [&](AesGcm& aes, Bytes& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const size_t size = std::min(bytes.size() - at, draw(draw(1) == 0 ? 40 : 9000));
      const std::span<std::byte> piece(bytes.data() + at, size);
      aes.Crypt(piece, piece.data());  // This works in place.
      at += size;
    }
  };
  std::optional<Bytes> first;
  Tag first_tag{};
  for (const AesCode code : codes) {
    const auto sealer = MakeAesGcm(code, key, AesGcm::Use::kSeals);
    const auto opener = MakeAesGcm(code, key, AesGcm::Use::kOpens);
    Bytes sealed = plain;
    sealer->Begin(nonce, header);
    crypt_in_pieces(*sealer, sealed);
    const Tag tag = sealer->MakeTag();
    if (!first) {
      first = sealed;
      first_tag = tag;
    }
    CHECK(sealed == *first);
    CHECK(tag == first_tag);
    opener->Begin(nonce, header);
    crypt_in_pieces(*opener, sealed);
    CHECK(opener->IsTag(tag));
    CHECK(sealed == plain);
  }
}

}  // namespace
}  // namespace talweg::transport
