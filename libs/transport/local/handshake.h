// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_LOCAL_HANDSHAKE_H_
#define TALWEG_LIBS_TRANSPORT_LOCAL_HANDSHAKE_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "libs/base/descriptor.h"

// Two processes of one host exchange their rings: one message in each direction over a
// SOCK_SEQPACKET Unix socket, with two descriptors and a proof of identity (docs/protocol.md,
// section 11). After that the socket carries nothing; its hang-up shows that the peer has ended.
// Nothing here blocks.
namespace talweg::transport {

// The only message. In a refusal, `text` says why, without a terminating zero if it is full.
// Otherwise `text` begins with a connect token, or with the answer to one. Version 1 had zeros
// there.
struct HandshakeMessage {
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t refused = 0;
  char text[240] = {};

  static constexpr uint64_t kMagic = 0x4c434f4c57414c54;
  static constexpr uint32_t kVersion = 2;
};
static_assert(sizeof(HandshakeMessage) == 256);

// The descriptors and the proof that came from a peer.
struct PeerDescriptors {
  Descriptor ring;      // memfd, not checked yet.
  Descriptor doorbell;  // eventfd, made non-blocking.
  std::array<std::byte, sizeof(HandshakeMessage::text)> proof{};
};

// `path` or "@abstract name", as after "local:".
absl::StatusOr<Descriptor> ListenUnix(const std::string& name);
absl::StatusOr<Descriptor> ConnectUnix(const std::string& name);

// Returns the peer's process, if it runs as this process's user or root. PERMISSION_DENIED names
// both users.
absl::StatusOr<int> CheckPeer(int socket);

// `proof`: a ConnectToken, or a ConnectAnswer.
absl::Status SendHandshake(int socket, int ring, int doorbell, std::span<const std::byte> proof);
// Tries to tell the peer why it is refused. The caller then closes the socket.
void SendRefusal(int socket, const std::string& text);
// Returns nullopt if nothing has come yet. An error: not a peer, or the peer has refused this
// process.
absl::StatusOr<std::optional<PeerDescriptors>> ReceiveHandshake(int socket);

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_LOCAL_HANDSHAKE_H_
