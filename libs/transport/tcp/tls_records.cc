// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/tcp/tls_records.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "libs/base/check.h"
#include "libs/transport/proof/digest.h"

namespace talweg::transport {
namespace {

// HKDF-Expand-Label with an empty context. `out` is no longer than one SHA-256, so one HMAC makes
// it.
void ExpandLabel(const TrafficSecret& secret, std::string_view label, std::span<std::byte> out) {
  TALWEG_CHECK(out.size() <= sizeof(Digest));
  const std::string name = "tls13 " + std::string(label);
  ByteWriter info;
  info.Number(uint8_t{0});  // The high byte of the two-byte length.
  info.Number(static_cast<uint8_t>(out.size()));
  info.Number(static_cast<uint8_t>(name.size()));
  info.Text(name);
  info.Number(uint8_t{0});  // The context's length.
  info.Number(uint8_t{1});  // HKDF's count of blocks.
  Digest block = Hmac(secret.bytes, {info.bytes()});
  std::copy_n(block.begin(), out.size(), out.begin());
  OPENSSL_cleanse(block.data(), block.size());
}

}  // namespace

TrafficSecret::~TrafficSecret() { OPENSSL_cleanse(bytes.data(), bytes.size()); }

TlsKey::TlsKey(const TrafficSecret& secret, AesGcm::Use use, AesCode code)
    : use_(use), code_(code), secret_(secret) {
  TakeKey();
}

TlsKey::~TlsKey() { OPENSSL_cleanse(iv_.data(), iv_.size()); }

void TlsKey::TakeKey() {
  std::array<std::byte, 16> key;  // AES-128.
  ExpandLabel(secret_, "key", key);
  ExpandLabel(secret_, "iv", iv_);
  aes_ = MakeAesGcm(code_, key, use_);
  OPENSSL_cleanse(key.data(), key.size());
  records_ = 0;
}

void TlsKey::Update() {
  TrafficSecret next;
  ExpandLabel(secret_, "traffic upd", next.bytes);
  secret_ = next;
  TakeKey();
}

AesGcm& TlsKey::Begin(std::span<const std::byte> header) {
  AesNonce nonce = iv_;
  for (size_t i = 0; i < sizeof(records_); ++i) {
    nonce[nonce.size() - 1 - i] ^= static_cast<std::byte>(records_ >> (8 * i));
  }
  ++records_;
  aes_->Begin(nonce, header);
  return *aes_;
}

size_t TlsSealer::Seal(TlsContent type, std::span<const std::span<const std::byte>> parts,
                       std::span<std::byte> out) {
  size_t bytes = 0;
  for (const std::span<const std::byte> part : parts) bytes += part.size();
  TALWEG_CHECK(bytes <= kTlsContentBytesMax && bytes + kTlsExtraBytes <= out.size());
  const size_t length = bytes + kTlsExtraBytes - kTlsHeaderBytes;
  out[0] = static_cast<std::byte>(TlsContent::kData);  // The outer type of every record.
  out[1] = out[2] = std::byte{3};
  out[3] = static_cast<std::byte>(length >> 8);
  out[4] = static_cast<std::byte>(length);
  AesGcm& aes = key_.Begin(out.first(kTlsHeaderBytes));
  std::byte* at = out.data() + kTlsHeaderBytes;
  for (const std::span<const std::byte> part : parts) {
    aes.Crypt(part, at);
    at += part.size();
  }
  const std::byte last = static_cast<std::byte>(type);
  aes.Crypt(std::span(&last, 1), at);
  ++at;
  const Tag tag = aes.MakeTag();
  std::copy(tag.begin(), tag.end(), at);
  return bytes + kTlsExtraBytes;
}

std::optional<size_t> TlsRecordBytes(std::span<const std::byte, kTlsHeaderBytes> header) {
  const size_t bytes =
      kTlsHeaderBytes + (static_cast<size_t>(header[3]) << 8) + static_cast<size_t>(header[4]);
  if (header[0] != static_cast<std::byte>(TlsContent::kData)) return std::nullopt;
  if (bytes < kTlsExtraBytes || bytes > kTlsRecordBytesMax) return std::nullopt;
  return bytes;
}

std::optional<TlsOpener::Opened> TlsOpener::Open(std::span<const std::byte> record,
                                                 std::span<std::byte> place) {
  TALWEG_CHECK(record.size() >= kTlsExtraBytes && record.size() == place.size() + kTlsExtraBytes);
  AesGcm& aes = key_.Begin(record.first(kTlsHeaderBytes));
  const std::span<const std::byte> sealed = record.subspan(kTlsHeaderBytes, place.size() + 1);
  aes.Crypt(sealed.first(place.size()), place.data());
  std::byte last;
  aes.Crypt(sealed.last(1), &last);
  Tag tag;
  std::copy_n(record.end() - kTagBytes, kTagBytes, tag.begin());
  if (!aes.IsTag(tag)) {
    OPENSSL_cleanse(place.data(), place.size());
    return std::nullopt;
  }
  // The type is the last byte that is not zero.
  size_t bytes = place.size();
  while (last == std::byte{0} && bytes > 0) last = place[--bytes];
  return Opened{.type = static_cast<uint8_t>(last), .bytes = bytes};
}

}  // namespace talweg::transport
