// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_PROOF_TOKEN_BOOK_H_
#define TALWEG_LIBS_TRANSPORT_PROOF_TOKEN_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>

#include "libs/transport/transport.h"

namespace talweg::transport {

// The claim of a connect token. A member counts its tokens up, over all its connections.
struct TokenClaim {
  PeerIdentity identity;
  uint32_t count = 0;
};

// The tokens that a listener has seen, so that each works only once.
//
// Keeps a few words for each member. Tokens of one epoch may come in another order than they were
// made, because connections open at the same time. A token is refused if its count is kOrderMax or
// more below the latest, or if its epoch is older than the latest.
class TokenBook {
 public:
  static constexpr uint32_t kOrderMax = 64;

  // Returns whether a genuine token with this claim is unused, and marks it as used. From time to
  // time forgets members that `admission` refuses; `admission` may be empty.
  bool Take(const TokenClaim& claim, const Admission& admission);

  size_t size() const { return used_.size(); }

 private:
  using Member = std::tuple<JobId, NodeRank, Incarnation>;
  struct Used {
    Epoch epoch;
    uint32_t latest = 0;
    uint64_t before = 0;  // Bit i: count latest - i was used.
  };

  static bool Note(const TokenClaim& claim, Used* used);
  void ForgetRefused(const Admission& admission);

  std::map<Member, Used> used_;
  size_t forget_at_ = 1024;
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_PROOF_TOKEN_BOOK_H_
