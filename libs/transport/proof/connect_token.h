// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_PROOF_CONNECT_TOKEN_H_
#define TALWEG_LIBS_TRANSPORT_PROOF_CONNECT_TOKEN_H_

#include <absl/status/statusor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "libs/transport/proof/data_key.h"
#include "libs/transport/proof/token_book.h"
#include "libs/transport/transport.h"

// How a peer shows in one message which member it is, where a transport has room for no more
// (docs/protocol.md, section 10). Bytes in, bytes out; no socket.
namespace talweg::transport {

// verbs carries 55 bytes.
inline constexpr size_t kConnectTokenBytes = 53;
inline constexpr size_t kConnectAnswerBytes = 16;
using ConnectToken = std::array<std::byte, kConnectTokenBytes>;
using ConnectAnswer = std::array<std::byte, kConnectAnswerBytes>;

// `member_key` is the identity's, at the listener that is connected to.
ConnectToken MakeConnectToken(const DataKey& member_key, const TokenClaim& claim);

// Whose token it is, and which of his. nullopt: nobody has made it who holds a key of this
// listener's. It may have been used before (TokenBook). What follows the token is not looked at.
std::optional<TokenClaim> CheckConnectToken(const DataKey& listener,
                                            std::span<const std::byte> said);

// By which a listener shows that it could check this token.
ConnectAnswer AnswerTo(const DataKey& member_key, const ConnectToken& token);

// Makes the tokens of a side that connects.
class TokenMaker {
 public:
  struct Made {
    ConnectToken token;
    ConnectAnswer answer;  // What the listener must say to it.
  };

  TokenMaker();

  // For the listener whose address has this key. Whoever has a listener's own key, as tests do, is
  // nobody: a member that is in no view.
  Made Next(const AddressKey& key);

 private:
  PeerIdentity nobody_;
  uint32_t count_ = 0;  // Twenty a second would last for six years.
};

// Decides whom a side that listens lets in.
class TokenGate {
 public:
  struct Entry {
    PeerIdentity identity;
    ConnectAnswer answer;  // To be said to it.
  };

  explicit TokenGate(const DataKey& listener) : listener_(listener) {}

  void SetAdmission(Admission admission) { admission_ = std::move(admission); }
  // UNAUTHENTICATED: it is no token of ours. Else a refusal says why to a member, for people.
  absl::StatusOr<Entry> Enter(std::span<const std::byte> said);

 private:
  const DataKey listener_;
  TokenBook book_;
  Admission admission_;
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_PROOF_CONNECT_TOKEN_H_
