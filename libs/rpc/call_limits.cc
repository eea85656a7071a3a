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

}  // namespace

double CallLimits::CallsAt(const Peer& peer, int64_t now_ns) const {
  const double elapsed_s = static_cast<double>(now_ns - peer.at_ns) / kNsPerS;
  return std::min(BurstMax(), peer.calls + elapsed_s * options_.per_second_max);
}

size_t CallLimits::PlaceCount(const std::string& name) const {
  const auto found = place_counts_.find(name);
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
    const auto counted = place_counts_.find(each.first.name);
    if (!each.first.place.empty() && --counted->second == 0) place_counts_.erase(counted);
    return true;
  });
}

CallPeer CallLimits::CountedAs(const CallPeer& peer, int64_t now_ns) {
  if (peers_.contains(peer)) return peer;
  const auto has_room = [this] { return peers_.size() < kPeersMax; };
  const auto has_place = [&] { return peer.place.empty() || PlaceCount(peer.name) < kPlacesMax; };
  if (!has_room() || !has_place()) Sweep(now_ns);
  if (!has_room()) return {.name = kOtherPeers, .place = {}};
  return has_place() ? peer : CallPeer{.name = peer.name, .place = kOtherPlaces};
}

CallLimits::Begun CallLimits::Begin(const CallPeer& caller, int64_t now_ns) {
  Begun begun = {.peer = CountedAs(caller, now_ns), .refusal = {}};
  const auto [found, is_new] = peers_.try_emplace(begun.peer);
  Peer& peer = found->second;
  if (is_new) {
    peer = {.calls = BurstMax(), .at_ns = now_ns};
    if (!begun.peer.place.empty()) ++place_counts_[begun.peer.name];
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

void CallLimits::Prove(const membership::SecretHash& secret, int64_t now_ns) {
  proven_[secret.bytes] = now_ns;
  if (proven_.size() <= kProvenMax) return;
  proven_.erase(std::min_element(
      proven_.begin(), proven_.end(),
      [](const auto& one, const auto& other) { return one.second < other.second; }));
}

}  // namespace talweg::rpc
