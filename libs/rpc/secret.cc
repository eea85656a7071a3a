// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/secret.h"

#include <openssl/sha.h>
#include <sys/random.h>

#include "libs/base/check.h"

namespace talweg::rpc {

std::string NewSecret() {
  std::string secret(kSecretBytes, '\0');
  // Never short for so few bytes, and it fails only where the call does not exist.
  TALWEG_CHECK(getrandom(secret.data(), secret.size(), 0) == static_cast<ssize_t>(secret.size()));
  return secret;
}

membership::SecretHash HashOf(std::string_view secret) {
  membership::SecretHash hash;
  static_assert(sizeof(hash.bytes) == SHA256_DIGEST_LENGTH);
  SHA256(reinterpret_cast<const unsigned char*>(secret.data()), secret.size(), hash.bytes.data());
  return hash;
}

std::optional<membership::SecretHash> HashOfSecret(std::string_view secret) {
  if (secret.empty()) return std::nullopt;
  return HashOf(secret);
}

}  // namespace talweg::rpc
