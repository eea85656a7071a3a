// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/tcp/seal.h"

#include <openssl/evp.h>

#include <algorithm>

#include "libs/base/check.h"
#include "libs/transport/proof/digest.h"

namespace talweg::transport {
namespace {

const unsigned char* Raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

}  // namespace

void Seal::ContextFreer::operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }

Seal::Seal(const SealKey& key) : context_(EVP_CIPHER_CTX_new()) {
  TALWEG_CHECK(context_ != nullptr);
  std::copy(key.salt.begin(), key.salt.end(), nonce_.begin());
  TALWEG_CHECK(EVP_EncryptInit_ex(context_.get(), EVP_aes_256_gcm(), nullptr, Raw(key.key.data()),
                                  Raw(nonce_.data())) == 1);
}

Tag Seal::Next(std::span<const std::byte> piece) {
  for (size_t i = 0; i < sizeof(count_); ++i) {
    nonce_[4 + i] = static_cast<std::byte>(count_ >> (8 * i));
  }
  ++count_;
  Tag tag;
  int ignored = 0;
  // GMAC is GCM that encrypts nothing. It fails only without memory.
  TALWEG_CHECK(EVP_EncryptInit_ex(context_.get(), nullptr, nullptr, nullptr, Raw(nonce_.data())) ==
               1);
  TALWEG_CHECK(EVP_EncryptUpdate(context_.get(), nullptr, &ignored, Raw(piece.data()),
                                 static_cast<int>(piece.size())) == 1);
  std::array<unsigned char, kTagBytes> none;
  TALWEG_CHECK(EVP_EncryptFinal_ex(context_.get(), none.data(), &ignored) == 1);
  TALWEG_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_GCM_GET_TAG, kTagBytes, tag.data()) ==
               1);
  return tag;
}

bool Seal::Check(std::span<const std::byte> piece, const Tag& tag) {
  return SameBytes(Next(piece), tag);
}

}  // namespace talweg::transport
