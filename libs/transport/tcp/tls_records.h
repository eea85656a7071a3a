// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_TCP_TLS_RECORDS_H_
#define TALWEG_LIBS_TRANSPORT_TCP_TLS_RECORDS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "libs/transport/tcp/aes_gcm.h"

// The records of TLS 1.3 (RFC 8446, sections 5 and 7) under TLS_AES_128_GCM_SHA256, after the
// handshake. Bytes in, bytes out; no socket.
//
//   0    1      3        5                          length - 11   length + 5
//   +----+------+--------+-----------------------------+-----------+
//   | 23 | 3, 3 | length | content, its type, zeros    | tag       |
//   +----+------+--------+-----------------------------+-----------+
//                         \_________ encrypted ________/
namespace talweg::transport {

// The secret from which the keys of one direction are derived. The destructor wipes it.
struct TrafficSecret {
  std::array<std::byte, 32> bytes{};

  TrafficSecret() = default;
  TrafficSecret(const TrafficSecret&) = default;
  TrafficSecret& operator=(const TrafficSecret&) = default;
  ~TrafficSecret();
};

enum class TlsContent : uint8_t { kAlert = 21, kHandshake = 22, kData = 23 };

inline constexpr size_t kTlsHeaderBytes = 5;
inline constexpr size_t kTlsContentBytesMax = 16 * 1024;
// The bytes of a record beside its content.
inline constexpr size_t kTlsExtraBytes = kTlsHeaderBytes + 1 + kTagBytes;
inline constexpr size_t kTlsRecordBytesMax = kTlsContentBytesMax + kTlsExtraBytes;

// The keys of one direction, one after the other, and the nonces of the current one.
class TlsKey {
 public:
  TlsKey(const TrafficSecret& secret, AesGcm::Use use, AesCode code);
  ~TlsKey();
  TlsKey(const TlsKey&) = delete;
  TlsKey& operator=(const TlsKey&) = delete;

  // Goes on to the next key, which a KeyUpdate message announces.
  void Update();
  // Returns how many records the current key has protected.
  uint64_t records() const { return records_; }

  // Begins the next record, with its nonce. The tag covers `header`, too.
  AesGcm& Begin(std::span<const std::byte> header);

 private:
  void TakeKey();

  const AesGcm::Use use_;
  const AesCode code_;
  TrafficSecret secret_;
  std::unique_ptr<AesGcm> aes_;
  AesNonce iv_{};
  uint64_t records_ = 0;
};

class TlsSealer {
 public:
  explicit TlsSealer(const TrafficSecret& secret, AesCode code = FastestAesCode())
      : key_(secret, AesGcm::Use::kSeals, code) {}

  // Writes a record with these parts to `out`, and returns its size: that of the parts, at most
  // kTlsContentBytesMax, plus kTlsExtraBytes.
  size_t Seal(TlsContent type, std::span<const std::span<const std::byte>> parts,
              std::span<std::byte> out);
  TlsKey& key() { return key_; }

 private:
  TlsKey key_;
};

// Returns the size of the record with this header, or nullopt if no record after a handshake has
// it.
std::optional<size_t> TlsRecordBytes(std::span<const std::byte, kTlsHeaderBytes> header);

class TlsOpener {
 public:
  struct Opened {
    uint8_t type = 0;
    size_t bytes = 0;
  };

  explicit TlsOpener(const TrafficSecret& secret, AesCode code = FastestAesCode())
      : key_(secret, AesGcm::Use::kOpens, code) {}

  // Writes the content of the next record to `place`, which has record.size() - kTlsExtraBytes
  // bytes. Bytes after the content may change, too. Returns nullopt if this is not the next record;
  // `place` is then all zeros, and the object must not be used.
  std::optional<Opened> Open(std::span<const std::byte> record, std::span<std::byte> place);
  TlsKey& key() { return key_; }

 private:
  TlsKey key_;
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_TCP_TLS_RECORDS_H_
