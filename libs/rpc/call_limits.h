// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_CALL_LIMITS_H_
#define TALWEG_LIBS_RPC_CALL_LIMITS_H_

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "libs/membership/records.h"

namespace talweg::rpc {

// The limits of one peer at a port. 0: no limit.
struct CallLimitOptions {
  uint32_t per_second_max = 200;
  uint32_t open_max = 256;
  // Open questions (AdminService) among these: the daemon has to collect their answers.
  uint32_t questions_open_max = 16;
};

// A peer, whose calls are counted together.
struct CallPeer {
  std::string name;  // An address, or the name in a certificate; for messages.
  // Tells peers of one name apart by where they are, or by their sessions. Empty: only one has the
  // name.
  std::string place;
  // A process of that name that is known by its session secret.
  bool is_session = false;

  std::string Text() const { return place.empty() ? name : name + " (" + place + ")"; }
  friend auto operator<=>(const CallPeer&, const CallPeer&) = default;
};

// Counts the calls of each peer: the latest ones, and those that are open.
//
// A peer may make two seconds' worth of calls at once, and then as many as time gives back. Memory
// is bounded: if kPeersMax peers have calls under way or made some just now, all new peers count as
// one. Likewise, peers of one name beyond kPlacesMax count as one, so that a name with many
// addresses leaves room for other names.
//
// Processes that have proven themselves take no room from others. All together are kSessionsMax at
// most, and those of one name kSessionsOfNameMax. Beyond that, the one that has been silent longest
// is forgotten.
//
// A question costs one more call for each kAnswerBytesOfCall of its answer. The cost is known late,
// so a peer may owe calls.
//
// No clock, lock or gRPC. One owner, or one lock around it.
class CallLimits {
 public:
  static constexpr size_t kPeersMax = 4096;
  static constexpr size_t kPlacesMax = 512;
  static constexpr size_t kSessionsMax = 65'536;
  static constexpr size_t kSessionsOfNameMax = 16'384;
  // A process that has not called for so long is forgotten. A member renews its lease more often.
  static constexpr int64_t kSessionNs = 600'000'000'000;
  static constexpr uint64_t kAnswerBytesOfCall = 16 << 10;

  explicit CallLimits(const CallLimitOptions& options) : options_(options) {}

  struct Begun {
    CallPeer peer;        // The peer to which the call counts. The call is open until End(peer).
    std::string refusal;  // Not empty: why the call is refused. It then does not count.
  };
  Begun Begin(const CallPeer& peer, int64_t now_ns);
  void End(const CallPeer& begun);
  // A call that was begun belongs to another peer. Undoes Begin.
  void Withdraw(const CallPeer& begun);

  // A call that was begun is a question, open until EndQuestion(begun). Returns "", or why it is
  // refused.
  std::string BeginQuestion(const CallPeer& begun);
  void EndQuestion(const CallPeer& begun);
  // Charges for the answer of a question.
  void Charge(const CallPeer& begun, uint64_t answer_bytes);

  // A call of `name` with this secret was answered well. So its process is known from now on.
  void Prove(const membership::SecretHash& secret, const std::string& name, int64_t now_ns);
  // The process is no member any more. Its open calls still count to it.
  void Forget(const membership::SecretHash& secret);
  // Returns the peer as which the process with this secret is counted, or nullopt if it is unknown.
  std::optional<CallPeer> SessionOf(const membership::SecretHash& secret) const;

  uint64_t refused_count() const { return refused_count_; }
  size_t peer_count() const { return peers_.size(); }
  size_t session_count() const { return sessions_.size(); }

 private:
  struct Peer {
    double calls = 0;  // How many it may make now; less than 0: how many it owes.
    int64_t at_ns = 0;
    uint32_t open_count = 0;
    uint32_t question_count = 0;
  };

  using Secret = std::array<uint8_t, 32>;
  struct Session {
    std::string name;   // Who has proven it first.
    int64_t at_ns = 0;  // When it was last proven.
  };

  double BurstMax() const { return 2.0 * options_.per_second_max; }
  // Returns how many calls the peer may make now.
  double CallsAt(const Peer& peer, int64_t now_ns) const;
  // Returns the peer as which `peer` is counted.
  CallPeer CountedAs(const CallPeer& peer, int64_t now_ns);
  // The name of a peer, and whether it is counted by session: what shares a bound on places.
  using Group = std::pair<std::string, bool>;
  static Group GroupOf(const CallPeer& peer) { return {peer.name, peer.is_session}; }
  size_t PlaceCount(const CallPeer& peer) const;
  // Once a second, forgets peers whose state equals that of a new peer.
  void Sweep(int64_t now_ns);
  void Drop(const Secret& secret);

  const CallLimitOptions options_;
  std::map<CallPeer, Peer> peers_;
  size_t session_peer_count_ = 0;         // How many of peers_ are sessions.
  std::map<Group, size_t> place_counts_;  // How many of peers_ are in the group and have a place.
  std::map<Secret, Session> sessions_;
  std::set<std::pair<int64_t, Secret>> by_time_;
  std::map<std::string, std::set<std::pair<int64_t, Secret>>> by_name_;
  int64_t swept_ns_ = 0;  // When idle peers were forgotten.
  uint64_t refused_count_ = 0;
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_CALL_LIMITS_H_
