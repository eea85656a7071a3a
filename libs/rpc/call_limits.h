// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_CALL_LIMITS_H_
#define TALWEG_LIBS_RPC_CALL_LIMITS_H_

#include <array>
#include <compare>
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
  // Questions among them (AdminService): the daemon has to collect what it answers.
  uint32_t questions_open_max = 16;
};

// Whose calls are counted together.
struct CallPeer {
  std::string name;   // An address, the name in a certificate, a process; for people.
  std::string place;  // Where this one of several is that may have the name. Empty: one has it.

  std::string Text() const { return place.empty() ? name : name + " (" + place + ")"; }
  friend auto operator<=>(const CallPeer&, const CallPeer&) = default;
};

// Counts the calls of each peer: the latest ones, and those that are open.
//
// A peer may make twice what it may make in a second at once, and then as many as time gives back.
// What is remembered is bounded: beyond kPeersMax peers that have calls under way, or have made
// some just now, all new ones are one peer together. So are, for themselves, those of one name
// beyond kPlacesMax: whoever has a name and many addresses leaves room for other names.
//
// A question costs what its answer costs to collect: one call more for each kAnswerBytesOfCall of
// it. That is known late, so a peer may owe calls.
//
// No clock, lock or gRPC. One owner, or one lock around it.
class CallLimits {
 public:
  static constexpr size_t kPeersMax = 4096;
  static constexpr size_t kPlacesMax = 512;
  static constexpr size_t kProvenMax = 65'536;
  static constexpr uint64_t kAnswerBytesOfCall = 16 << 10;

  explicit CallLimits(const CallLimitOptions& options) : options_(options) {}

  struct Begun {
    CallPeer peer;        // Under which the call counts. It is open until End of that.
    std::string refusal;  // Not empty: why it does not count, and is refused.
  };
  Begun Begin(const CallPeer& peer, int64_t now_ns);
  void End(const CallPeer& begun);
  // A call that was begun is another peer's.
  void Withdraw(const CallPeer& begun);

  // A call that was begun is a question, open until EndQuestion of that. Not empty: why it is not,
  // and is refused.
  std::string BeginQuestion(const CallPeer& begun);
  void EndQuestion(const CallPeer& begun);
  // So much was collected for a question.
  void Charge(const CallPeer& begun, uint64_t answer_bytes);

  // Whoever shows this secret is known, as its call was answered well.
  void Prove(const membership::SecretHash& secret, int64_t now_ns);
  bool IsProven(const membership::SecretHash& secret) const {
    return proven_.contains(secret.bytes);
  }

  uint64_t refused_count() const { return refused_count_; }
  size_t peer_count() const { return peers_.size(); }

 private:
  struct Peer {
    double calls = 0;  // That it may make now; less than 0: that it owes.
    int64_t at_ns = 0;
    uint32_t open_count = 0;
    uint32_t question_count = 0;
  };

  double BurstMax() const { return 2.0 * options_.per_second_max; }
  // How many calls the peer may make now.
  double CallsAt(const Peer& peer, int64_t now_ns) const;
  // Under which the peer is counted.
  CallPeer CountedAs(const CallPeer& peer, int64_t now_ns);
  size_t PlaceCount(const std::string& name) const;
  // Forgets who is as good as new, once a second.
  void Sweep(int64_t now_ns);

  const CallLimitOptions options_;
  std::map<CallPeer, Peer> peers_;
  std::map<std::string, size_t> place_counts_;  // How many of peers_ have the name and a place.
  std::map<std::array<uint8_t, 32>, int64_t> proven_;  // When it was last shown.
  int64_t swept_ns_ = 0;                               // When idle peers were forgotten.
  uint64_t refused_count_ = 0;
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_CALL_LIMITS_H_
