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

// A peer proves in one message which member it is, for transports that carry only one
// (docs/protocol.md, section 10). Bytes in, bytes out; no socket.
namespace talweg::transport {

// verbs carries 55 bytes.
inline constexpr size_t kConnectTokenBytes = 53;
inline constexpr size_t kConnectAnswerBytes = 16;
using ConnectToken = std::array<std::byte, kConnectTokenBytes>;
using ConnectAnswer = std::array<std::byte, kConnectAnswerBytes>;

// `member_key` is the key of the claim's member at the listener.
ConnectToken MakeConnectToken(const DataKey& member_key, const TokenClaim& claim);

// Returns the member that made the token, and the token's count. nullopt: no holder of a key of
// this listener has made it. The token may have been used before (TokenBook). Ignores bytes after
// the token.
std::optional<TokenClaim> CheckConnectToken(const DataKey& listener,
                                            std::span<const std::byte> said);

// Returns the answer that proves that the listener could check this token.
ConnectAnswer AnswerTo(const DataKey& member_key, const ConnectToken& token);

// Makes the tokens of a side that connects.
class TokenMaker {
 public:
  struct Made {
    ConnectToken token;
    ConnectAnswer answer;  // The answer that the listener must send.
  };

  TokenMaker();

  // Makes a token for the listener whose address has this key. With a listener's own key, as in
  // tests, the identity is "nobody", a member of no view.
  Made Next(const AddressKey& key);

 private:
  PeerIdentity nobody_;
  uint32_t count_ = 0;  // Twenty a second would last for six years.
};

// Decides which peers a listener lets in.
class TokenGate {
 public:
  struct Entry {
    PeerIdentity identity;
    ConnectAnswer answer;  // To be sent to the peer.
  };

  explicit TokenGate(const DataKey& listener) : listener_(listener) {}

  void SetAdmission(Admission admission) { admission_ = std::move(admission); }
  // UNAUTHENTICATED: no token for this listener. Another error is a refusal that tells the member
  // why.
  absl::StatusOr<Entry> Enter(std::span<const std::byte> said);

 private:
  const DataKey listener_;
  TokenBook book_;
  Admission admission_;
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_PROOF_CONNECT_TOKEN_H_
