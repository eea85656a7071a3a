// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_TCP_HANDSHAKE_H_
#define TALWEG_LIBS_TRANSPORT_TCP_HANDSHAKE_H_

#include <array>
#include <cstddef>
#include <optional>
#include <span>

#include "libs/transport/proof/data_key.h"
#include "libs/transport/tcp/seal.h"
#include "libs/transport/transport.h"

// The two ends of a TCP connection prove that they hold its key (docs/protocol.md, section 9).
// Bytes in, bytes out; no socket.
namespace talweg::transport {

inline constexpr size_t kHelloBytes = 104;
inline constexpr size_t kAnswerBytes = 64;
inline constexpr size_t kProofBytes = 32;
using HelloMessage = std::array<std::byte, kHelloBytes>;
using AnswerMessage = std::array<std::byte, kAnswerBytes>;
using ProofMessage = std::array<std::byte, kProofBytes>;

// The keys of both directions of one connection.
struct SessionSeals {
  SealKey connecting;  // For bytes that the connecting side sends.
  SealKey listening;
};

// The side that connects.
class ConnectingHandshake {
 public:
  // `address.identity` is set, unless the key is the listener's own, which proves no member's
  // identity.
  explicit ConnectingHandshake(const TcpAddress& address);

  const HelloMessage& hello() const { return hello_; }
  // Returns the Proof to send, or nullopt if the peer does not hold the key.
  std::optional<ProofMessage> OnAnswer(const AnswerMessage& answer);
  // After OnAnswer.
  SessionSeals Seals() const;
  // For TLS.
  DataKey PreSharedKey() const;

 private:
  DataKey key_;
  HelloMessage hello_;
  AnswerMessage answer_{};
};

// The side that listens.
class ListeningHandshake {
 public:
  ListeningHandshake(const DataKey& listener, DataSecurity security)
      : listener_(listener), security_(security) {}

  // Returns the Answer to send, which TLS does not use, or nullopt if this is no peer.
  std::optional<AnswerMessage> OnHello(const HelloMessage& hello);
  bool OnProof(const ProofMessage& proof) const;
  // Valid after OnHello. Proven only after OnProof, or by TLS.
  const PeerIdentity& identity() const { return identity_; }
  SessionSeals Seals() const;
  DataKey PreSharedKey() const;

 private:
  const DataKey listener_;
  const DataSecurity security_;
  DataKey key_;
  PeerIdentity identity_;
  HelloMessage hello_{};
  AnswerMessage answer_{};
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_TCP_HANDSHAKE_H_
