// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_CALL_LIMITS_H_
#define TALWEG_LIBS_RPC_CALL_LIMITS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "libs/membership/records.h"

namespace talweg::rpc {

// What one peer may ask of a port. 0: any number.
struct CallLimitOptions {
  uint32_t per_second_max = 200;
  uint32_t open_max = 256;
};

// Counts the calls of each peer: those of late and those that are open.
//
// A peer may make twice what it may make in a second at once, and then as many as time gives back.
// A peer is an address, the name in a certificate, or a process that has proven who it is (Prove).
// What is remembered is bounded: beyond kPeersMax peers that have calls under way, or have made
// some just now, all new ones are one peer together.
//
// No clock, lock or gRPC. One owner, or one lock around it.
class CallLimits {
 public:
  static constexpr size_t kPeersMax = 4096;
  static constexpr size_t kProvenMax = 65'536;

  explicit CallLimits(const CallLimitOptions& options) : options_(options) {}

  // A call of `peer`. "": it is open until End. Else why it is refused.
  std::string Begin(const std::string& peer, int64_t now_ns);
  void End(const std::string& peer);
  // A call that was begun is another peer's.
  void Withdraw(const std::string& peer);

  // Whoever shows this secret is known, as its call was answered well.
  void Prove(const membership::SecretHash& secret, int64_t now_ns);
  bool IsProven(const membership::SecretHash& secret) const {
    return proven_.contains(secret.bytes);
  }

  uint64_t refused_count() const { return refused_count_; }
  size_t peer_count() const { return peers_.size(); }

 private:
  struct Peer {
    double calls = 0;  // That it may make now.
    int64_t at_ns = 0;
    uint32_t open_count = 0;
  };

  double BurstMax() const { return 2.0 * options_.per_second_max; }
  // How many calls the peer may make now.
  double CallsAt(const Peer& peer, int64_t now_ns) const;
  // The name under which the peer is counted.
  const std::string& NameOf(const std::string& peer, int64_t now_ns);

  const CallLimitOptions options_;
  std::map<std::string, Peer> peers_;
  std::map<std::array<uint8_t, 32>, int64_t> proven_;  // When it was last shown.
  int64_t swept_ns_ = 0;                               // When idle peers were forgotten.
  uint64_t refused_count_ = 0;
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_CALL_LIMITS_H_
