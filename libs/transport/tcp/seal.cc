// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/tcp/seal.h"

#include <openssl/crypto.h>

#include <algorithm>

#include "libs/transport/proof/digest.h"

namespace talweg::transport {

SealKey::~SealKey() { OPENSSL_cleanse(this, sizeof(*this)); }

// Checking a tag means making it and comparing.
Seal::Seal(const SealKey& key, AesCode code)
    : aes_(MakeAesGcm(code, key.key, AesGcm::Use::kSeals)) {
  std::copy(key.salt.begin(), key.salt.end(), nonce_.begin());
}

Tag Seal::Next(std::span<const std::byte> piece) {
  for (size_t i = 0; i < sizeof(count_); ++i) {
    nonce_[4 + i] = static_cast<std::byte>(count_ >> (8 * i));
  }
  ++count_;
  aes_->Begin(nonce_, piece);
  return aes_->MakeTag();
}

bool Seal::Check(std::span<const std::byte> piece, const Tag& tag) {
  return SameBytes(Next(piece), tag);
}

}  // namespace talweg::transport
