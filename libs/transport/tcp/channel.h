// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_TCP_CHANNEL_H_
#define TALWEG_LIBS_TRANSPORT_TCP_CHANNEL_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "libs/base/descriptor.h"
#include "libs/transport/proof/data_key.h"
#include "libs/transport/tcp/handshake.h"
#include "libs/transport/tcp/tls_records.h"

typedef struct ssl_ctx_st SSL_CTX;

namespace talweg::transport {

// Moves units of bytes in order over a connected socket, and protects them. The peer receives units
// of the sizes that were queued. Nothing blocks. Any error ends the connection. Its text continues
// a sentence that begins with the peer's name.
class Channel {
 public:
  virtual ~Channel() = default;

  // Appends a unit, which is borrowed until sent() covers it.
  virtual void Queue(std::span<const std::byte> unit) = 0;
  // Sends as much as the socket takes.
  virtual absl::Status Flush() = 0;
  // Returns how many bytes of units, since the beginning, the caller need not keep any more.
  virtual uint64_t sent() const = 0;
  // Bytes that have not gone to the kernel yet.
  virtual uint64_t unsent_bytes() const = 0;

  // Continues to receive the next unit into `unit`, which has its size. Returns whether the unit is
  // complete and authentic. False with drained(): the socket becomes readable when there is more.
  // False without drained(): the bytes of one turn are used up.
  virtual absl::StatusOr<bool> Receive(std::span<std::byte> unit) = 0;
  virtual bool drained() const = 0;
  // The socket has become readable. `is_ending`: epoll also reports its end.
  virtual void OnReadable(bool is_ending) = 0;
};

// The most that a Receive reads before it returns, so that a fast peer does not block the others.
inline constexpr size_t kTurnBytesMax = 4 * 1024 * 1024;
// The most bytes under one tag.
inline constexpr size_t kPieceBytes = 64 * 1024;

// `socket` is the caller's, and outlives the channel. Bytes are not protected.
std::unique_ptr<Channel> NewPlainChannel(int socket);
// Sends each unit in pieces of at most kPieceBytes, each followed by its tag.
std::unique_ptr<Channel> NewSealedChannel(int socket, const SealKey& ours, const SealKey& theirs);

// Records of TLS 1.3, as they follow a handshake.
struct TlsRecordOptions {
  // AES-GCM under one key is safe for 2^24.5 full records (RFC 8446, 5.5).
  uint64_t records_of_key_max = uint64_t{1} << 22;
};
// `ours` makes the keys for sending, `theirs` those for receiving. Without `ours` the channel
// cannot send, and a peer that asks for a new key of ours ends the connection.
std::unique_ptr<Channel> NewTlsRecordChannel(int socket, const std::optional<TrafficSecret>& ours,
                                             const TrafficSecret& theirs,
                                             const TlsRecordOptions& options);

// A TLS handshake, and the channel that follows it.
class TlsHandshake {
 public:
  virtual ~TlsHandshake() = default;

  // Continues the handshake. Returns true when it is done.
  virtual absl::StatusOr<bool> Shake() = 0;
  // Call it once, when the handshake is done.
  virtual std::unique_ptr<Channel> TakeChannel() = 0;
};

struct TlsOptions {
  TlsRecordOptions records;
  // OpenSSL writes the records, as it does when the kernel seals them. For tests.
  bool openssl_seals = false;
};

// Shared by the TLS connections of one transport.
class TlsContext {
 public:
  explicit TlsContext(const TlsOptions& options = {});
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  std::unique_ptr<TlsHandshake> NewHandshake(int socket, bool connects,
                                             const DataKey& pre_shared_key) const;

 private:
  const TlsOptions options_;
  SSL_CTX* const context_;
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_TCP_CHANNEL_H_
