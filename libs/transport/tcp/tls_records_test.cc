// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/tcp/tls_records.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/check.h"
#include "libs/transport/tcp/aes_gcm_testing.h"

namespace talweg::transport {
namespace {

TrafficSecret SecretOf(std::string_view hex) {
  TrafficSecret secret;
  const std::vector<std::byte> bytes = Hex(hex);
  TALWEG_CHECK(bytes.size() == secret.bytes.size());
  std::copy(bytes.begin(), bytes.end(), secret.bytes.begin());
  return secret;
}

// RFC 8448, section 3: what the client sends after the handshake, and under which secret.
const TrafficSecret kSecret =
    SecretOf("9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5");
const std::vector<std::byte> kDataRecord =
    Hex("1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a20"
        "441e2b62974e1f5a6292a2977014bd1e3deae63aeebb21694915e4");
const std::vector<std::byte> kAlertRecord = Hex("1703030013c9872760655666b74d7ff1153efd6db6d0b0e3");

std::vector<std::byte> Counting(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

std::vector<std::byte> SealWith(TlsSealer& sealer, TlsContent type,
                                const std::vector<std::vector<std::byte>>& contents) {
  const std::vector<std::span<const std::byte>> parts(contents.begin(), contents.end());
  std::vector<std::byte> record(kTlsRecordBytesMax);
  record.resize(sealer.Seal(type, parts, record));
  return record;
}

// Returns the record's type and content. nullopt: it is not the next one.
std::optional<std::pair<uint8_t, std::vector<std::byte>>> OpenWith(
    TlsOpener& opener, const std::vector<std::byte>& record) {
  std::vector<std::byte> place(record.size() - kTlsExtraBytes, std::byte{0x5a});
  const auto opened = opener.Open(record, place);
  if (!opened) {
    CHECK(std::all_of(place.begin(), place.end(), [](std::byte b) { return b == std::byte{0}; }));
    return std::nullopt;
  }
  place.resize(opened->bytes);
  return std::pair(opened->type, place);
}

constexpr uint8_t kData = static_cast<uint8_t>(TlsContent::kData);

TEST_CASE("Tls records: the records of RFC 8448 are made and read", "[transport]") {
  const AesCode code = GENERATE(from_range(AesCodes()));
  TlsSealer sealer(kSecret, code);
  CHECK(SealWith(sealer, TlsContent::kData, {Counting(50)}) == kDataRecord);
  CHECK(SealWith(sealer, TlsContent::kAlert, {Hex("0100")}) == kAlertRecord);
  TlsOpener opener(kSecret, code);
  CHECK(OpenWith(opener, kDataRecord) == std::pair(kData, Counting(50)));
  CHECK(OpenWith(opener, kAlertRecord) ==
        std::pair(static_cast<uint8_t>(TlsContent::kAlert), Hex("0100")));
}

TEST_CASE("Tls records: content in parts makes the same record as in one piece", "[transport]") {
  const AesCode code = GENERATE(from_range(AesCodes()));
  const std::vector<std::byte> all = Counting(10'000);
  const auto cut = [&](size_t begin, size_t end) {
    return std::vector<std::byte>(all.begin() + static_cast<ptrdiff_t>(begin),
                                  all.begin() + static_cast<ptrdiff_t>(end));
  };
  TlsSealer one(kSecret, code);
  TlsSealer several(kSecret, code);
  CHECK(SealWith(one, TlsContent::kData, {all}) ==
        SealWith(several, TlsContent::kData,
                 {cut(0, 24), cut(24, 24), cut(24, 171), cut(171, 9999), cut(9999, 10'000)}));
}

TEST_CASE("Tls records: a change of any byte is noticed", "[transport]") {
  const AesCode code = GENERATE(from_range(AesCodes()));
  for (size_t i = 0; i < kDataRecord.size(); ++i) {
    std::vector<std::byte> changed = kDataRecord;
    changed[i] ^= std::byte{1};
    CAPTURE(i);
    TlsOpener opener(kSecret, code);
    CHECK_FALSE(OpenWith(opener, changed));
  }
}

TEST_CASE("Tls records: each record fits once, in its order and its direction", "[transport]") {
  const AesCode code = GENERATE(from_range(AesCodes()));
  TlsSealer sealer(kSecret, code);
  const auto first = SealWith(sealer, TlsContent::kData, {Counting(5000)});
  const auto second = SealWith(sealer, TlsContent::kData, {Counting(100)});
  sealer.key().Update();
  const auto third = SealWith(sealer, TlsContent::kData, {Counting(7)});
  TlsOpener opener(kSecret, code);
  SECTION("The records are in order") {
    CHECK(OpenWith(opener, first));
    CHECK(OpenWith(opener, second));
    CHECK(opener.key().records() == 2);
    opener.key().Update();
    CHECK(opener.key().records() == 0);
    CHECK(OpenWith(opener, third) == std::pair(kData, Counting(7)));
  }
  SECTION("A record is repeated") {
    CHECK(OpenWith(opener, first));
    CHECK_FALSE(OpenWith(opener, first));
  }
  SECTION("A record is left out") { CHECK_FALSE(OpenWith(opener, second)); }
  SECTION("A record is cut") {
    auto cut = first;
    cut.pop_back();
    CHECK_FALSE(OpenWith(opener, cut));
  }
  SECTION("A record is under the next key") {
    CHECK(OpenWith(opener, first));
    CHECK(OpenWith(opener, second));
    CHECK_FALSE(OpenWith(opener, third));
  }
  SECTION("A record is under the previous key") {
    opener.key().Update();
    CHECK_FALSE(OpenWith(opener, first));
  }
  SECTION("A record is under the secret of the other direction") {
    TrafficSecret other = kSecret;
    other.bytes[31] ^= std::byte{1};
    TlsOpener others(other, code);
    CHECK_FALSE(OpenWith(others, first));
  }
}

TEST_CASE("Tls records: zeros after the type do not count as content", "[transport]") {
  const AesCode code = GENERATE(from_range(AesCodes()));
  const size_t zeros = GENERATE(1, 15, 16, 17, 4000);
  TlsSealer sealer(kSecret, code);
  TlsOpener opener(kSecret, code);
  const auto no_type = static_cast<TlsContent>(0);
  std::vector<std::byte> content = Counting(33);
  content.push_back(std::byte{0});
  CHECK(OpenWith(opener, SealWith(sealer, no_type,
                                  {content, Hex("17"), std::vector<std::byte>(zeros - 1)})) ==
        std::pair(kData, content));
  // A record of zeros has no type, and may be empty.
  CHECK(OpenWith(opener, SealWith(sealer, no_type, {std::vector<std::byte>(zeros)})) ==
        std::pair(uint8_t{0}, std::vector<std::byte>()));
  CHECK(OpenWith(opener, SealWith(sealer, TlsContent::kData, {})) ==
        std::pair(kData, std::vector<std::byte>()));
}

TEST_CASE("Tls records: bytes that are no header of a record are refused", "[transport]") {
  const auto bytes_of = [](const char* hex) {
    const std::vector<std::byte> header = Hex(hex);
    return TlsRecordBytes(std::span<const std::byte, kTlsHeaderBytes>(header));
  };
  CHECK(bytes_of("1703030011") == 22);
  CHECK(bytes_of("1703030010") == std::nullopt);
  CHECK(bytes_of("1703034011") == kTlsRecordBytesMax);
  CHECK(bytes_of("1703034012") == std::nullopt);
  CHECK(bytes_of("170303ffff") == std::nullopt);
  // Nothing is sent in the clear any more: no alert, no handshake message, no ChangeCipherSpec.
  CHECK(bytes_of("1503030020") == std::nullopt);
  CHECK(bytes_of("1603030020") == std::nullopt);
  CHECK(bytes_of("1403030020") == std::nullopt);
}

}  // namespace
}  // namespace talweg::transport
