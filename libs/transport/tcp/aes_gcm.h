// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_TCP_AES_GCM_H_
#define TALWEG_LIBS_TRANSPORT_TCP_AES_GCM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace talweg::transport {

using AesNonce = std::array<std::byte, 12>;
inline constexpr size_t kTagBytes = 16;
using Tag = std::array<std::byte, kTagBytes>;

// AES-GCM (NIST SP 800-38D) with one key, in one direction. The caller begins a message, encrypts
// or decrypts pieces of any size, and ends the message with its tag. No nonce may be used twice. A
// message with only a header is authenticated and not encrypted (GMAC).
class AesGcm {
 public:
  enum class Use : uint8_t { kSeals, kOpens };

  virtual ~AesGcm() = default;

  // Begins a message. Its tag covers `header` too.
  virtual void Begin(const AesNonce& nonce, std::span<const std::byte> header) = 0;
  // Writes the next piece to `to`, which has room for as many bytes, and may be `from`.
  virtual void Crypt(std::span<const std::byte> from, std::byte* to) = 0;
  // Ends a message of kSeals.
  virtual Tag MakeTag() = 0;
  // Ends a message of kOpens. Returns false if its bytes are not those that were sealed.
  virtual bool IsTag(const Tag& tag) = 0;
};

// The library that implements AES-GCM.
enum class AesCode : uint8_t {
  kOpenSsl,
  // Intel's IPsec Multi-Buffer library. OpenSSL 3.0 has no code for VAES, and takes three times as
  // long.
  kIpsecMb,
};

// Returns kIpsecMb if that library is installed and this CPU has VAES with AVX-512, else kOpenSsl.
AesCode FastestAesCode();

// What a person may do about a slow FastestAesCode().
struct FasterAes {
  bool cpu_can = false;      // This CPU has VAES with AVX-512.
  std::string problem = {};  // Why libipsec-mb is not used; empty if it is.
};
FasterAes LookForFasterAes();

// `key` has 16 bytes for AES-128, 32 for AES-256. kIpsecMb only if FastestAesCode() returns it.
std::unique_ptr<AesGcm> MakeAesGcm(AesCode code, std::span<const std::byte> key, AesGcm::Use use);

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_TCP_AES_GCM_H_
