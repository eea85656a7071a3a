// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_PROOF_TOKEN_BOOK_H_
#define TALWEG_LIBS_TRANSPORT_PROOF_TOKEN_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>

#include "libs/transport/transport.h"

namespace talweg::transport {

// What a connect token says. A member counts its tokens up, over all that it connects to.
struct TokenClaim {
  PeerIdentity identity;
  uint32_t count = 0;
};

// Which tokens a listener has seen, so that each lets somebody in once.
//
// It keeps a few words for each member. Tokens of one epoch may come in another order than that in
// which they were made, as connections that are opened together do. One that is kOrderMax or more
// behind the latest is refused, and so is one of an older epoch than the latest.
class TokenBook {
 public:
  static constexpr uint32_t kOrderMax = 64;

  // Whether a token with this claim, which was found genuine, is good. It is used up then. Members
  // that the admission refuses are forgotten from time to time; it may be empty.
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
