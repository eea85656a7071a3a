// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/handshake_life.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "libs/base/random.h"
#include "libs/transport/proof/connect_token.h"
#include "libs/transport/proof/data_key.h"
#include "libs/transport/tcp/handshake.h"

namespace talweg::sim {
namespace {

using transport::AddressKey;
using transport::AnswerMessage;
using transport::ConnectToken;
using transport::DataKey;
using transport::DataSecurity;
using transport::HelloMessage;
using transport::PeerIdentity;
using transport::ProofMessage;
using transport::TcpAddress;

constexpr int kSteps = 150;

struct Broken {
  std::string text;
};

class HandshakeWorld {
 public:
  explicit HandshakeWorld(uint64_t seed) : random_(seed) {
    for (size_t i = 0; i < 2; ++i) listeners_.emplace_back();
    for (const uint64_t epoch : {7, 8}) {
      for (const uint32_t node : {0, 1, 2}) {
        members_.push_back({.job = JobId(3),
                            .epoch = Epoch(epoch),
                            .node = NodeRank(node),
                            .incarnation = Incarnation(100 + node)});
      }
    }
    makers_.resize(3);
  }

  HandshakeResult Live() {
    try {
      for (int i = 0; i < kSteps; ++i) Step();
    } catch (const Broken& broken) {
      result_.violation = broken.text;
    }
    return result_;
  }

 private:
  // A listening transport: its key, and its gate for tokens.
  struct Listener {
    Listener() : gate(key) {}

    const DataKey key = transport::NewDataKey();
    transport::TokenGate gate;
  };
  // A side that connects and keeps the rules.
  struct Connecting {
    PeerIdentity member;
    size_t listener = 0;
    DataSecurity security = DataSecurity::kKeyed;
    transport::ConnectingHandshake shake;
    std::optional<AnswerMessage> heard = std::nullopt;
    std::optional<ProofMessage> proof = std::nullopt;
    bool is_paired = false;
  };
  struct Listening {
    size_t listener = 0;
    DataSecurity security = DataSecurity::kKeyed;
    transport::ListeningHandshake shake;
    std::optional<HelloMessage> heard = std::nullopt;
    std::optional<AnswerMessage> said = std::nullopt;
    bool is_open = false;
  };
  struct Token {
    size_t listener = 0;
    PeerIdentity member;
    transport::TokenMaker::Made made;
    bool is_used = false;
  };

  void Step() {
    switch (random_.Below(8)) {
      case 0: NewConnecting(); break;
      case 1: NewListening(); break;
      case 2: SayHello(); break;
      case 3: SayAnswer(); break;
      case 4: SayProof(); break;
      case 5: Relay(); break;
      case 6: NewToken(); break;
      default: ShowToken(); break;
    }
  }
  void Reached(const char* what) { ++result_.coverage[what]; }
  size_t Some(size_t count) { return random_.Below(count); }
  DataSecurity SomeSecurity() {
    constexpr std::array kAll = {DataSecurity::kNone, DataSecurity::kKeyed, DataSecurity::kTls};
    return kAll[Some(kAll.size())];
  }
  TcpAddress AddressOf(const PeerIdentity& member, size_t listener, DataSecurity security) const {
    return {.host_port = "127.0.0.1:1",
            .security = security,
            .key = {.identity = member, .key = MemberKey(listeners_[listener].key, member)}};
  }
  // The attacker is this member, and has its keys.
  PeerIdentity Himself() const { return members_[2]; }

  // The attacker's version of a message: the same, one with a flipped bit, or one with the end of
  // another.
  template <typename Message>
  Message Touched(Message message, const Message& other) {
    const size_t at = Some(message.size());
    switch (random_.Below(3)) {
      case 0: break;
      case 1: message[at] ^= std::byte{1} << Some(8); break;
      default: std::copy(other.begin() + at, other.end(), message.begin() + at); break;
    }
    return message;
  }

  Connecting& NewConnecting() {
    const PeerIdentity member = members_[Some(members_.size())];
    const size_t listener = Some(listeners_.size());
    const DataSecurity security = SomeSecurity();
    return connecting_.emplace_back(
        Connecting{.member = member,
                   .listener = listener,
                   .security = security,
                   .shake = transport::ConnectingHandshake(AddressOf(member, listener, security))});
  }
  // A transport has one setting. Here one key is used with all settings, which checks that the
  // handshake tells them apart.
  Listening& NewListening(size_t listener, DataSecurity security) {
    return listening_.emplace_back(
        Listening{.listener = listener,
                  .security = security,
                  .shake = transport::ListeningHandshake(listeners_[listener].key, security)});
  }
  void NewListening() { NewListening(Some(listeners_.size()), SomeSecurity()); }

  // --- Hello.
  void SayHello() {
    if (connecting_.empty() || listening_.empty()) return;
    Listening& to = listening_[Some(listening_.size())];
    if (to.heard) return;
    if (random_.OneIn(4)) return Hear(to, ForgedHello());
    const HelloMessage& other = connecting_[Some(connecting_.size())].shake.hello();
    Hear(to, Touched(connecting_[Some(connecting_.size())].shake.hello(), other));
  }
  // Returns a Hello with the attacker's own key and another member's name.
  HelloMessage ForgedHello() {
    Reached("a Hello under another member's name");
    const size_t listener = Some(listeners_.size());
    TcpAddress address = AddressOf(Himself(), listener, SomeSecurity());
    address.key.identity = members_[Some(members_.size())];
    if (*address.key.identity == Himself()) address.key.identity->epoch = Epoch(9);
    return transport::ConnectingHandshake(address).hello();
  }
  void Hear(Listening& to, const HelloMessage& hello) {
    to.heard = hello;
    to.said = to.shake.OnHello(hello);
    if (!to.said) return Reached("a Hello is refused");
    Reached("a Hello is answered");
    const bool is_made =
        std::any_of(connecting_.begin(), connecting_.end(), [&to, &hello](const Connecting& each) {
          return each.shake.hello() == hello && each.listener == to.listener &&
                 each.security == to.security && each.member == to.shake.identity();
        });
    if (!is_made) throw Broken{"a listener answers a Hello that no member sent to it"};
  }

  // --- Answer.
  void SayAnswer() {
    if (connecting_.empty() || listening_.empty()) return;
    Connecting& to = connecting_[Some(connecting_.size())];
    const Listening& from = listening_[Some(listening_.size())];
    const Listening& other = listening_[Some(listening_.size())];
    if (to.heard || !from.said || !other.said) return;
    if (random_.OneIn(4)) {
      Reached("a Hello comes back to its maker as an Answer");
      AnswerMessage back;
      std::copy_n(to.shake.hello().end() - back.size(), back.size(), back.begin());
      return Hear(to, back);
    }
    Hear(to, Touched(*from.said, *other.said));
  }
  void Hear(Connecting& to, const AnswerMessage& answer) {
    to.proof = to.shake.OnAnswer(answer);
    // In this model the connecting side then waits for another Answer.
    if (!to.proof) return Reached("an Answer is refused");
    to.heard = answer;
    Reached("an Answer is taken");
    const bool is_made =
        std::any_of(listening_.begin(), listening_.end(), [&to](const Listening& each) {
          return each.said == to.heard && each.heard == to.shake.hello() &&
                 each.listener == to.listener && each.security == to.security;
        });
    if (!is_made)
      throw Broken{"a member takes an Answer that its listener did not give to this Hello"};
  }

  // --- Proof.
  void SayProof() {
    if (connecting_.empty() || listening_.empty()) return;
    Listening& to = listening_[Some(listening_.size())];
    const Connecting& from = connecting_[Some(connecting_.size())];
    if (!to.said || to.is_open) return;
    if (random_.OneIn(4)) {
      Reached("an Answer comes back to its maker as a Proof");
      ProofMessage back;
      std::copy_n(to.said->end() - back.size(), back.size(), back.begin());
      return Hear(to, back);
    }
    if (from.proof) Hear(to, Touched(*from.proof, *from.proof));
  }
  void Hear(Listening& to, const ProofMessage& proof) {
    if (!to.shake.OnProof(proof)) return Reached("a Proof is refused");
    Reached("a Proof is taken");
    to.is_open = true;
    const auto from =
        std::find_if(connecting_.begin(), connecting_.end(), [&to, &proof](const Connecting& each) {
          return each.proof == proof && each.heard == to.said && each.shake.hello() == *to.heard &&
                 each.member == to.shake.identity();
        });
    if (from == connecting_.end())
      throw Broken{"a listener takes a Proof that no member gave to its Answer"};
    if (std::exchange(from->is_paired, true)) {
      throw Broken{"one connection of a member is two connections at its listener"};
    }
    CheckKeys(*from, to);
  }
  // Checks that both ends have the same keys, one for each direction, and that no other pair has
  // them.
  void CheckKeys(const Connecting& from, const Listening& to) {
    const transport::SessionSeals ours = from.shake.Seals();
    const transport::SessionSeals theirs = to.shake.Seals();
    if (ours.connecting.key != theirs.connecting.key ||
        ours.listening.key != theirs.listening.key ||
        from.shake.PreSharedKey() != to.shake.PreSharedKey()) {
      throw Broken{"the two ends of a connection have different keys"};
    }
    for (const transport::SealKey& key : {ours.connecting, ours.listening}) {
      if (!seals_.insert(key.key).second) throw Broken{"a key is used twice"};
    }
  }

  // Runs a handshake that the attacker does not touch.
  void Relay() {
    Connecting& from = NewConnecting();
    Listening& to = NewListening(from.listener, from.security);
    Hear(to, from.shake.hello());
    if (!to.said) throw Broken{"a member's Hello is refused"};
    Hear(from, *to.said);
    if (!from.proof) throw Broken{"a listener's Answer is refused"};
    Hear(to, *from.proof);
    if (!to.is_open) throw Broken{"a member's Proof is refused"};
    Reached("a connection stands");
  }

  // --- Tokens.

  // Makes a token. Now and then it makes many more that the listener does not see.
  void NewToken() {
    const PeerIdentity member = members_[Some(members_.size())];
    const size_t listener = Some(listeners_.size());
    const AddressKey key = {.identity = member, .key = MemberKey(listeners_[listener].key, member)};
    const uint64_t unseen = random_.OneIn(4) ? random_.Below(100) : 0;
    for (uint64_t i = 0; i < unseen; ++i) makers_[member.node.value()].Next(key);
    tokens_.push_back(
        {.listener = listener, .member = member, .made = makers_[member.node.value()].Next(key)});
  }
  void ShowToken() {
    if (tokens_.empty()) return;
    const size_t listener = Some(listeners_.size());
    ConnectToken shown = tokens_[Some(tokens_.size())].made.token;
    if (random_.OneIn(4)) {
      Reached("a token under another member's name");
      shown = transport::MakeConnectToken(MemberKey(listeners_[listener].key, Himself()),
                                          {.identity = members_[Some(2)], .count = 1'000});
    } else {
      shown = Touched(shown, tokens_[Some(tokens_.size())].made.token);
    }
    const auto entry = listeners_[listener].gate.Enter(shown);
    const auto token =
        std::find_if(tokens_.begin(), tokens_.end(), [&shown, listener](const Token& each) {
          return each.made.token == shown && each.listener == listener;
        });
    if (!entry.ok()) {
      const bool is_late = absl::IsPermissionDenied(entry.status());
      Reached(is_late ? "a token that was used, or is late, is refused" : "a token is refused");
      if (token != tokens_.end() && !token->is_used && !is_late) {
        throw Broken{"a member's token is refused"};
      }
      return;
    }
    Reached("a token lets its member in");
    if (token == tokens_.end())
      throw Broken{"a token is accepted that no member made for this listener"};
    if (std::exchange(token->is_used, true)) throw Broken{"a token is accepted twice"};
    if (entry->identity != token->member)
      throw Broken{"a member's token is accepted as that of another member"};
    if (entry->answer != token->made.answer) throw Broken{"the answer to a token is wrong"};
    Epoch& latest = latest_epochs_[{listener, token->member.node}];
    if (token->member.epoch < latest) throw Broken{"a token of an older epoch is accepted"};
    latest = token->member.epoch;
  }

  Random random_;
  std::deque<Listener> listeners_;
  std::vector<PeerIdentity> members_;
  // By node: each is the token maker of that node's process.
  std::vector<transport::TokenMaker> makers_;
  std::deque<Connecting> connecting_;
  std::deque<Listening> listening_;
  std::deque<Token> tokens_;
  // The epoch of the last good token, by listener and node.
  std::map<std::pair<size_t, NodeRank>, Epoch> latest_epochs_;
  std::set<std::array<std::byte, 32>> seals_;
  HandshakeResult result_;
};

}  // namespace

HandshakeResult LiveHandshakes(uint64_t seed) { return HandshakeWorld(seed).Live(); }

}  // namespace talweg::sim
