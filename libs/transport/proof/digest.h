// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_PROOF_DIGEST_H_
#define TALWEG_LIBS_TRANSPORT_PROOF_DIGEST_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "libs/base/ids.h"
#include "libs/transport/transport.h"

// HMAC and HKDF with SHA-256, by OpenSSL.
namespace talweg::transport {

using Digest = std::array<std::byte, 32>;

// Fixed-width integers in little-endian order, one after the other.
class ByteWriter {
 public:
  template <typename Integer>
  void Number(Integer value) {
    LowBytes(value, sizeof(value));
  }
  void Bytes(std::span<const std::byte> bytes);
  void Text(std::string_view text) { Bytes(std::as_bytes(std::span(text))); }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void LowBytes(uint64_t value, size_t count);

  std::vector<std::byte> bytes_;
};

// Returns the little-endian integer of `size` bytes at `offset`, which `bytes` must have.
uint64_t NumberAt(std::span<const std::byte> bytes, size_t offset, size_t size);

// The 32 bytes of an identity: job, epoch, node, 4 zero bytes, incarnation.
inline constexpr size_t kIdentityBytes = 32;
void WriteIdentity(const PeerIdentity& identity, ByteWriter* out);
// Returns nullopt if the bytes that must be zero are not.
std::optional<PeerIdentity> ReadIdentity(std::span<const std::byte, kIdentityBytes> bytes);

Digest Hmac(std::span<const std::byte> key,
            std::initializer_list<std::span<const std::byte>> parts);

// Fills `out` from `key`, `salt` and `info` (RFC 5869).
void Hkdf(std::span<const std::byte> key, std::span<const std::byte> salt, std::string_view info,
          std::span<std::byte> out);

// Compares in a time that does not depend on the bytes' values.
bool SameBytes(std::span<const std::byte> a, std::span<const std::byte> b);

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_PROOF_DIGEST_H_
