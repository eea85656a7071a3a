// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/call_limits.h"

#include <algorithm>

#include "libs/base/counted.h"

namespace talweg::rpc {
namespace {

constexpr double kNsPerS = 1e9;
constexpr int64_t kSweepNs = 1'000'000'000;

constexpr char kOtherPeers[] = "other peers";
constexpr char kOtherPlaces[] = "other addresses";
constexpr char kOtherSessions[] = "other sessions";

// Returns what tells one process from others in a text.
std::string TextOf(const std::array<uint8_t, 32>& secret_hash) {
  std::string text = "session ";
  static constexpr char kDigits[] = "0123456789abcdef";
  for (size_t i = 0; i < 8; ++i) {
    text += kDigits[secret_hash[i] >> 4];
    text += kDigits[secret_hash[i] & 15];
  }
  return text;
}

}  // namespace

double CallLimits::CallsAt(const Peer& peer, int64_t now_ns) const {
  const double elapsed_s = static_cast<double>(now_ns - peer.at_ns) / kNsPerS;
  return std::min(BurstMax(), peer.calls + elapsed_s * options_.per_second_max);
}

size_t CallLimits::PlaceCount(const CallPeer& peer) const {
  const auto found = place_counts_.find(GroupOf(peer));
  return found == place_counts_.end() ? 0 : found->second;
}

void CallLimits::Sweep(int64_t now_ns) {
  if (now_ns - swept_ns_ < kSweepNs) return;
  swept_ns_ = now_ns;
  // Forgets a peer that has no open call, and whose limit is full again.
  std::erase_if(peers_, [&](const auto& each) {
    const bool has_all = options_.per_second_max == 0 || CallsAt(each.second, now_ns) >= BurstMax();
    const bool has_open = each.second.open_count > 0 || each.second.question_count > 0;
    if (has_open || !has_all) return false;
    const auto counted = place_counts_.find(GroupOf(each.first));
    if (!each.first.place.empty() && --counted->second == 0) place_counts_.erase(counted);
    if (each.first.is_session) --session_peer_count_;
    return true;
  });
}

CallPeer CallLimits::CountedAs(const CallPeer& peer, int64_t now_ns) {
  if (peers_.contains(peer)) return peer;
  const auto has_room = [&] {
    return peer.is_session ? session_peer_count_ < kSessionsMax
                           : peers_.size() - session_peer_count_ < kPeersMax;
  };
  const size_t places_max = peer.is_session ? kSessionsOfNameMax : kPlacesMax;
  const auto has_place = [&] { return peer.place.empty() || PlaceCount(peer) < places_max; };
  if (!has_room() || !has_place()) Sweep(now_ns);
  if (!has_room()) return {.name = kOtherPeers, .place = {}};
  if (has_place()) return peer;
  return {.name = peer.name, .place = peer.is_session ? kOtherSessions : kOtherPlaces};
}

CallLimits::Begun CallLimits::Begin(const CallPeer& caller, int64_t now_ns) {
  Begun begun = {.peer = CountedAs(caller, now_ns), .refusal = {}};
  const auto [found, is_new] = peers_.try_emplace(begun.peer);
  Peer& peer = found->second;
  if (is_new) {
    peer = {.calls = BurstMax(), .at_ns = now_ns};
    if (!begun.peer.place.empty()) ++place_counts_[GroupOf(begun.peer)];
    if (begun.peer.is_session) ++session_peer_count_;
  }
  peer.calls = CallsAt(peer, now_ns);
  peer.at_ns = now_ns;
  const auto refuse = [&](const std::string& what, uint32_t max, const std::string& of) {
    ++refused_count_;
    begun.refusal = begun.peer.Text() + " has " + what + "=" + std::to_string(max) + " calls " +
                    of + " that one peer may have here: ask less often, or raise that option of " +
                    "this daemon";
    return begun;
  };
  if (options_.open_max > 0 && peer.open_count >= options_.open_max) {
    return refuse("the peer_calls_open_max", options_.open_max, "open");
  }
  if (options_.per_second_max > 0 && peer.calls < 1) {
    const bool owes = peer.calls < 0;
    return refuse("made the peer_calls_per_second_max", options_.per_second_max,
                  owes ? "a second, long answers counted as several," : "a second");
  }
  peer.calls -= 1;
  ++peer.open_count;
  return begun;
}

// A peer with an open call is not forgotten.
void CallLimits::End(const CallPeer& begun) {
  const auto found = peers_.find(begun);
  if (found != peers_.end() && found->second.open_count > 0) --found->second.open_count;
}

void CallLimits::Withdraw(const CallPeer& begun) {
  End(begun);
  const auto found = peers_.find(begun);
  if (found != peers_.end()) found->second.calls = std::min(BurstMax(), found->second.calls + 1);
}

std::string CallLimits::BeginQuestion(const CallPeer& begun) {
  const auto found = peers_.find(begun);
  if (found == peers_.end()) return "";
  Peer& peer = found->second;
  if (options_.questions_open_max == 0 || peer.question_count < options_.questions_open_max) {
    ++peer.question_count;
    return "";
  }
  ++refused_count_;
  return begun.Text() + " has " + Counted(options_.questions_open_max, "question") +
         " open (AdminService), which is as many as one peer may have here: ask again " +
         "when one is answered, and read the answers";
}

void CallLimits::EndQuestion(const CallPeer& begun) {
  const auto found = peers_.find(begun);
  if (found != peers_.end() && found->second.question_count > 0) --found->second.question_count;
}

void CallLimits::Charge(const CallPeer& begun, uint64_t answer_bytes) {
  const auto found = peers_.find(begun);
  if (found == peers_.end()) return;
  found->second.calls -= static_cast<double>(answer_bytes / kAnswerBytesOfCall);
}

void CallLimits::Prove(const membership::SecretHash& secret, const std::string& name,
                       int64_t now_ns) {
  const auto found = sessions_.find(secret.bytes);
  const Session session = {.name = found == sessions_.end() ? name : found->second.name,
                           .at_ns = now_ns};
  if (found != sessions_.end()) Drop(secret.bytes);
  sessions_[secret.bytes] = session;
  by_time_.emplace(now_ns, secret.bytes);
  auto& of_name = by_name_[session.name];
  of_name.emplace(now_ns, secret.bytes);
  if (of_name.size() > kSessionsOfNameMax) Drop(of_name.begin()->second);
  while (sessions_.size() > kSessionsMax || by_time_.begin()->first < now_ns - kSessionNs) {
    Drop(by_time_.begin()->second);
  }
}

void CallLimits::Forget(const membership::SecretHash& secret) {
  if (sessions_.contains(secret.bytes)) Drop(secret.bytes);
}

std::optional<CallPeer> CallLimits::SessionOf(const membership::SecretHash& secret) const {
  const auto found = sessions_.find(secret.bytes);
  if (found == sessions_.end()) return std::nullopt;
  return CallPeer{.name = found->second.name, .place = TextOf(secret.bytes), .is_session = true};
}

void CallLimits::Drop(const Secret& secret) {
  const auto found = sessions_.find(secret);
  const std::pair<int64_t, Secret> at = {found->second.at_ns, found->first};
  by_time_.erase(at);
  const auto of_name = by_name_.find(found->second.name);
  of_name->second.erase(at);
  if (of_name->second.empty()) by_name_.erase(of_name);
  sessions_.erase(found);
}

}  // namespace talweg::rpc
