// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/call_limits.h"

#include <algorithm>

namespace talweg::rpc {
namespace {

constexpr double kNsPerS = 1e9;
constexpr int64_t kSweepNs = 1'000'000'000;

const std::string& OtherPeers() {
  static const std::string* const name = new std::string("other peers");
  return *name;
}

}  // namespace

double CallLimits::CallsAt(const Peer& peer, int64_t now_ns) const {
  const double elapsed_s = static_cast<double>(now_ns - peer.at_ns) / kNsPerS;
  return std::min(BurstMax(), peer.calls + elapsed_s * options_.per_second_max);
}

const std::string& CallLimits::NameOf(const std::string& peer, int64_t now_ns) {
  if (peers_.contains(peer) || peers_.size() < kPeersMax) return peer;
  if (now_ns - swept_ns_ >= kSweepNs) {
    swept_ns_ = now_ns;
    // Who has nothing open and all its calls back is as good as new.
    std::erase_if(peers_, [&](const auto& each) {
      return each.second.open_count == 0 && CallsAt(each.second, now_ns) >= BurstMax();
    });
  }
  return peers_.size() < kPeersMax ? peer : OtherPeers();
}

std::string CallLimits::Begin(const std::string& peer_name, int64_t now_ns) {
  const auto [found, is_new] = peers_.try_emplace(NameOf(peer_name, now_ns));
  Peer& peer = found->second;
  if (is_new) peer = {.calls = BurstMax(), .at_ns = now_ns};
  peer.calls = CallsAt(peer, now_ns);
  peer.at_ns = now_ns;
  const auto refuse = [&](const std::string& what, uint32_t max, const std::string& of) {
    ++refused_count_;
    return found->first + " has " + what + "=" + std::to_string(max) + " calls " + of +
           " that one peer may have here: ask less often, or raise that option of this daemon";
  };
  if (options_.open_max > 0 && peer.open_count >= options_.open_max) {
    return refuse("the peer_calls_open_max", options_.open_max, "open");
  }
  if (options_.per_second_max > 0 && peer.calls < 1) {
    return refuse("made the peer_calls_per_second_max", options_.per_second_max, "a second");
  }
  peer.calls -= 1;
  ++peer.open_count;
  return "";
}

void CallLimits::End(const std::string& peer) {
  const auto found = peers_.find(peers_.contains(peer) ? peer : OtherPeers());
  if (found != peers_.end() && found->second.open_count > 0) --found->second.open_count;
}

void CallLimits::Withdraw(const std::string& peer) {
  End(peer);
  const auto found = peers_.find(peer);
  if (found != peers_.end()) found->second.calls = std::min(BurstMax(), found->second.calls + 1);
}

void CallLimits::Prove(const membership::SecretHash& secret, int64_t now_ns) {
  proven_[secret.bytes] = now_ns;
  if (proven_.size() <= kProvenMax) return;
  proven_.erase(std::min_element(
      proven_.begin(), proven_.end(),
      [](const auto& one, const auto& other) { return one.second < other.second; }));
}

}  // namespace talweg::rpc
