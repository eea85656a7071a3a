// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_TCP_SEAL_H_
#define TALWEG_LIBS_TRANSPORT_TCP_SEAL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "libs/transport/tcp/aes_gcm.h"

namespace talweg::transport {

// The key of one direction of one connection. The destructor wipes it.
struct SealKey {
  std::array<std::byte, 32> key{};
  std::array<std::byte, 4> salt{};

  SealKey() = default;
  SealKey(const SealKey&) = default;
  SealKey& operator=(const SealKey&) = default;
  ~SealKey();
};
static_assert(sizeof(SealKey) == 36);

// Authenticates the pieces of one direction, one after the other: AES-256-GMAC, whose nonce is the
// salt and the number of the piece. One side makes tags, the other checks them.
class Seal {
 public:
  explicit Seal(const SealKey& key, AesCode code = FastestAesCode());

  // Returns the tag of the next piece.
  Tag Next(std::span<const std::byte> piece);
  // Returns whether this is the next piece's tag. After false the object must not be used.
  bool Check(std::span<const std::byte> piece, const Tag& tag);

 private:
  std::unique_ptr<AesGcm> aes_;
  AesNonce nonce_{};
  uint64_t count_ = 0;
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_TCP_SEAL_H_
