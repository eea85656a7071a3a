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

// How two processes of one host hand each other their rings: one message in each direction over a
// SOCK_SEQPACKET Unix socket, with two descriptors attached, and with what proves who each is
// (docs/protocol.md, section 11). Afterwards the socket carries nothing. Its hang-up shows the end
// of a peer. Nothing here blocks.
namespace talweg::transport {

// The only message. `text` of a refusal says why, for people. It has no terminating zero when full.
// Otherwise it begins with a connect token, or with the answer to one. Version 1 had zeros there.
struct HandshakeMessage {
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t refused = 0;
  char text[240] = {};

  static constexpr uint64_t kMagic = 0x4c434f4c57414c54;
  static constexpr uint32_t kVersion = 2;
};
static_assert(sizeof(HandshakeMessage) == 256);

// What a peer has handed over.
struct PeerDescriptors {
  Descriptor ring;      // memfd, not looked at yet.
  Descriptor doorbell;  // eventfd, made non-blocking.
  std::array<std::byte, sizeof(HandshakeMessage::text)> proof{};
};

// `path` or "@abstract name", as after "local:".
absl::StatusOr<Descriptor> ListenUnix(const std::string& name);
absl::StatusOr<Descriptor> ConnectUnix(const std::string& name);

// The peer's process, if it runs as our user or root. PERMISSION_DENIED names both users.
absl::StatusOr<int> CheckPeer(int socket);

// `proof`: a ConnectToken, or a ConnectAnswer.
absl::Status SendHandshake(int socket, int ring, int doorbell, std::span<const std::byte> proof);
// Tells the peer why, as well as it can. Then the caller closes.
void SendRefusal(int socket, const std::string& text);
// nullopt: nothing has come yet. A failure: this is no peer, or the peer has refused us.
absl::StatusOr<std::optional<PeerDescriptors>> ReceiveHandshake(int socket);

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_LOCAL_HANDSHAKE_H_
