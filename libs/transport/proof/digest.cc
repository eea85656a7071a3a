// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/proof/digest.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <string.h>

#include <memory>
#include <optional>
#include <string>

#include "libs/base/check.h"

namespace talweg::transport {
namespace {

struct MacFreer {
  void operator()(EVP_MAC* mac) const { EVP_MAC_free(mac); }
};
struct MacContextFreer {
  void operator()(EVP_MAC_CTX* context) const { EVP_MAC_CTX_free(context); }
};
struct KdfFreer {
  void operator()(EVP_KDF* kdf) const { EVP_KDF_free(kdf); }
};
struct KdfContextFreer {
  void operator()(EVP_KDF_CTX* context) const { EVP_KDF_CTX_free(context); }
};

const unsigned char* Raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

OSSL_PARAM OctetsParam(const char* name, const void* bytes, size_t size) {
  // OpenSSL only reads these bytes.
  return OSSL_PARAM_construct_octet_string(name, const_cast<void*>(bytes), size);
}

}  // namespace

uint64_t NumberAt(std::span<const std::byte> bytes, size_t offset, size_t size) {
  uint64_t value = 0;
  for (size_t i = 0; i < size; ++i) {
    value |= static_cast<uint64_t>(bytes[offset + i]) << (8 * i);
  }
  return value;
}

void ByteWriter::Bytes(std::span<const std::byte> bytes) {
  for (const std::byte byte : bytes) bytes_.push_back(byte);
}

void ByteWriter::LowBytes(uint64_t value, size_t count) {
  for (size_t i = 0; i < count; ++i) bytes_.push_back(static_cast<std::byte>(value >> (8 * i)));
}

void WriteIdentity(const PeerIdentity& identity, ByteWriter* out) {
  out->Number(identity.job.value());
  out->Number(identity.epoch.value());
  out->Number(identity.node.value());
  out->Number(uint32_t{0});
  out->Number(identity.incarnation.value());
}

std::optional<PeerIdentity> ReadIdentity(std::span<const std::byte, kIdentityBytes> bytes) {
  if (NumberAt(bytes, 20, 4) != 0) return std::nullopt;
  return PeerIdentity{.job = JobId(NumberAt(bytes, 0, 8)),
                      .epoch = Epoch(NumberAt(bytes, 8, 8)),
                      .node = NodeRank(static_cast<uint32_t>(NumberAt(bytes, 16, 4))),
                      .incarnation = Incarnation(NumberAt(bytes, 24, 8))};
}

Digest Hmac(std::span<const std::byte> key,
            std::initializer_list<std::span<const std::byte>> parts) {
  const std::unique_ptr<EVP_MAC, MacFreer> mac(EVP_MAC_fetch(nullptr, "HMAC", nullptr));
  TALWEG_CHECK(mac != nullptr);
  const std::unique_ptr<EVP_MAC_CTX, MacContextFreer> context(EVP_MAC_CTX_new(mac.get()));
  std::string digest = "SHA256";
  const OSSL_PARAM params[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest.data(), 0),
      OSSL_PARAM_construct_end()};
  TALWEG_CHECK(EVP_MAC_init(context.get(), Raw(key), key.size(), params) == 1);
  for (const std::span<const std::byte> part : parts) {
    TALWEG_CHECK(EVP_MAC_update(context.get(), Raw(part), part.size()) == 1);
  }
  Digest result;
  size_t size = 0;
  TALWEG_CHECK(EVP_MAC_final(context.get(), reinterpret_cast<unsigned char*>(result.data()), &size,
                             result.size()) == 1);
  TALWEG_CHECK(size == result.size());
  return result;
}

void Hkdf(std::span<const std::byte> key, std::span<const std::byte> salt, std::string_view info,
          std::span<std::byte> out) {
  const std::unique_ptr<EVP_KDF, KdfFreer> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  TALWEG_CHECK(kdf != nullptr);
  const std::unique_ptr<EVP_KDF_CTX, KdfContextFreer> context(EVP_KDF_CTX_new(kdf.get()));
  std::string digest = "SHA256";
  // No salt means a salt of zeros. OpenSSL does not take an empty one.
  const Digest zeros{};
  if (salt.empty()) salt = zeros;
  const OSSL_PARAM params[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
      OctetsParam(OSSL_KDF_PARAM_KEY, key.data(), key.size()),
      OctetsParam(OSSL_KDF_PARAM_SALT, salt.data(), salt.size()),
      OctetsParam(OSSL_KDF_PARAM_INFO, info.data(), info.size()), OSSL_PARAM_construct_end()};
  TALWEG_CHECK(EVP_KDF_derive(context.get(), reinterpret_cast<unsigned char*>(out.data()),
                              out.size(), params) == 1);
}

bool SameBytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace talweg::transport
