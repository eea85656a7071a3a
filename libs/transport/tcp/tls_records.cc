// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/tcp/tls_records.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "libs/base/check.h"
#include "libs/transport/proof/digest.h"

namespace talweg::transport {
namespace {

constexpr size_t kKeyBytes = 16;

const unsigned char* Raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}
unsigned char* Raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

// HKDF-Expand-Label with an empty context. `out` is no longer than one SHA-256, so one HMAC makes
// it.
void ExpandLabel(const TrafficSecret& secret, std::string_view label, std::span<std::byte> out) {
  TALWEG_CHECK(out.size() <= sizeof(Digest));
  const std::string name = "tls13 " + std::string(label);
  ByteWriter info;
  info.Number(uint8_t{0});  // The two bytes of the length have the high one first.
  info.Number(static_cast<uint8_t>(out.size()));
  info.Number(static_cast<uint8_t>(name.size()));
  info.Text(name);
  info.Number(uint8_t{0});  // The context's length.
  info.Number(uint8_t{1});  // HKDF's count of blocks.
  Digest block = Hmac(secret.bytes, {info.bytes()});
  std::copy_n(block.begin(), out.size(), out.begin());
  OPENSSL_cleanse(block.data(), block.size());
}

// OpenSSL's calls fail without memory alone, but for the last one of opening.
void Crypt(EVP_CIPHER_CTX* context, std::span<const std::byte> from, std::byte* to) {
  int done = 0;
  TALWEG_CHECK(EVP_CipherUpdate(context, Raw(to), &done, Raw(from.data()),
                                static_cast<int>(from.size())) == 1);
}

}  // namespace

TrafficSecret::~TrafficSecret() { OPENSSL_cleanse(bytes.data(), bytes.size()); }

void TlsKey::ContextFreer::operator()(EVP_CIPHER_CTX* context) const {
  EVP_CIPHER_CTX_free(context);
}

TlsKey::TlsKey(const TrafficSecret& secret, Use use)
    : use_(use), secret_(secret), context_(EVP_CIPHER_CTX_new()) {
  TALWEG_CHECK(context_ != nullptr);
  TakeKey();
}

TlsKey::~TlsKey() { OPENSSL_cleanse(iv_.data(), iv_.size()); }

void TlsKey::TakeKey() {
  std::array<std::byte, kKeyBytes> key;
  ExpandLabel(secret_, "key", key);
  ExpandLabel(secret_, "iv", iv_);
  TALWEG_CHECK(EVP_CipherInit_ex(context_.get(), EVP_aes_128_gcm(), nullptr, Raw(key.data()),
                                 nullptr, use_ == Use::kSeals ? 1 : 0) == 1);
  OPENSSL_cleanse(key.data(), key.size());
  records_ = 0;
}

void TlsKey::Update() {
  TrafficSecret next;
  ExpandLabel(secret_, "traffic upd", next.bytes);
  secret_ = next;
  TakeKey();
}

EVP_CIPHER_CTX* TlsKey::Begin(std::span<const std::byte> header) {
  std::array<std::byte, 12> nonce = iv_;
  for (size_t i = 0; i < sizeof(records_); ++i) {
    nonce[nonce.size() - 1 - i] ^= static_cast<std::byte>(records_ >> (8 * i));
  }
  ++records_;
  TALWEG_CHECK(
      EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, Raw(nonce.data()), -1) == 1);
  Crypt(context_.get(), header, nullptr);
  return context_.get();
}

size_t TlsSealer::Seal(TlsContent type, std::span<const std::span<const std::byte>> parts,
                       std::span<std::byte> out) {
  size_t bytes = 0;
  for (const std::span<const std::byte> part : parts) bytes += part.size();
  TALWEG_CHECK(bytes <= kTlsContentBytesMax && bytes + kTlsExtraBytes <= out.size());
  const size_t length = bytes + kTlsExtraBytes - kTlsHeaderBytes;
  out[0] = static_cast<std::byte>(TlsContent::kData);  // So says every record, whatever is in it.
  out[1] = out[2] = std::byte{3};
  out[3] = static_cast<std::byte>(length >> 8);
  out[4] = static_cast<std::byte>(length);
  EVP_CIPHER_CTX* const context = key_.Begin(out.first(kTlsHeaderBytes));
  std::byte* at = out.data() + kTlsHeaderBytes;
  for (const std::span<const std::byte> part : parts) {
    if (part.empty()) continue;
    Crypt(context, part, at);
    at += part.size();
  }
  const std::byte last = static_cast<std::byte>(type);
  Crypt(context, std::span(&last, 1), at);
  ++at;
  int ignored = 0;
  TALWEG_CHECK(EVP_CipherFinal_ex(context, Raw(at), &ignored) == 1);
  TALWEG_CHECK(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, kTagBytes, at) == 1);
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
  EVP_CIPHER_CTX* const context = key_.Begin(record.first(kTlsHeaderBytes));
  const std::span<const std::byte> sealed = record.subspan(kTlsHeaderBytes, place.size() + 1);
  if (!place.empty()) Crypt(context, sealed.first(place.size()), place.data());
  std::byte last;
  Crypt(context, sealed.last(1), &last);
  Tag tag;
  std::copy_n(record.end() - kTagBytes, kTagBytes, tag.begin());
  int ignored = 0;
  std::array<unsigned char, kTagBytes> none;
  TALWEG_CHECK(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, kTagBytes, tag.data()) == 1);
  if (EVP_CipherFinal_ex(context, none.data(), &ignored) != 1) {
    OPENSSL_cleanse(place.data(), place.size());
    return std::nullopt;
  }
  // The type is the last byte that is not zero.
  size_t bytes = place.size();
  while (last == std::byte{0} && bytes > 0) last = place[--bytes];
  return Opened{.type = static_cast<uint8_t>(last), .bytes = bytes};
}

}  // namespace talweg::transport
