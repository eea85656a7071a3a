// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/call_limits.h"

#include <cstdint>
#include <string>

#include <catch2/catch.hpp>

namespace talweg::rpc {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

CallPeer Of(const std::string& name, const std::string& place = "") {
  return {.name = name, .place = place};
}

std::string Refusal(CallLimits& limits, const CallPeer& peer, int64_t now_ns) {
  return limits.Begin(peer, now_ns).refusal;
}

int Admitted(CallLimits& limits, const CallPeer& peer, int calls, int64_t now_ns, bool end = true) {
  int admitted = 0;
  for (int i = 0; i < calls; ++i) {
    const CallLimits::Begun begun = limits.Begin(peer, now_ns);
    if (!begun.refusal.empty()) continue;
    ++admitted;
    if (end) limits.End(begun.peer);
  }
  return admitted;
}

TEST_CASE("CallLimits: a peer may make so many calls a second, and twice as many at once",
          "[rpc]") {
  CallLimits limits({.per_second_max = 10, .open_max = 0});
  CHECK(Admitted(limits, Of("a"), 100, 0) == 20);
  CHECK(Admitted(limits, Of("a"), 100, kSecond / 2) == 5);
  CHECK(Admitted(limits, Of("a"), 100, kSecond) == 5);
  CHECK(Admitted(limits, Of("a"), 100, 100 * kSecond) == 20);
  // That does not affect other peers.
  CHECK(Admitted(limits, Of("b"), 100, 100 * kSecond) == 20);
  CHECK(limits.refused_count() == 80 + 95 + 95 + 80 + 80);
  CHECK(Refusal(limits, Of("a"), 100 * kSecond) ==
        "a has made the peer_calls_per_second_max=10 calls a second that one peer may have here: "
        "ask less often, or raise that option of this daemon");
}

TEST_CASE("CallLimits: a peer may have so many calls open", "[rpc]") {
  CallLimits limits({.per_second_max = 0, .open_max = 3});
  CHECK(Admitted(limits, Of("a"), 5, 0, false) == 3);
  CHECK(Refusal(limits, Of("a"), 0) ==
        "a has the peer_calls_open_max=3 calls open that one peer may have here: ask less often, "
        "or raise that option of this daemon");
  CHECK(Admitted(limits, Of("b"), 5, 0, false) == 3);
  limits.End(Of("a"));
  CHECK(Admitted(limits, Of("a"), 5, 0, false) == 1);
}

TEST_CASE("CallLimits: a peer may have so many questions open", "[rpc]") {
  CallLimits limits({.per_second_max = 0, .open_max = 0, .questions_open_max = 2});
  const CallPeer a = limits.Begin(Of("a"), 0).peer;
  CHECK(limits.BeginQuestion(a).empty());
  CHECK(limits.BeginQuestion(a).empty());
  CHECK(limits.BeginQuestion(a) ==
        "a has 2 questions open (AdminService), which is as many as one peer may have here: ask "
        "again when one is answered, and read the answers");
  CHECK(limits.refused_count() == 1);
  CHECK(Refusal(limits, Of("a"), 0).empty());  // Other calls are not affected.
  const CallPeer b = limits.Begin(Of("b"), 0).peer;
  CHECK(limits.BeginQuestion(b).empty());
  limits.EndQuestion(a);
  CHECK(limits.BeginQuestion(a).empty());
}

TEST_CASE("CallLimits: a question counts until it is answered, even after its call has ended",
          "[rpc]") {
  CallLimits limits({.per_second_max = 1, .open_max = 0, .questions_open_max = 1});
  const CallPeer a = limits.Begin(Of("a"), 0).peer;
  REQUIRE(limits.BeginQuestion(a).empty());
  limits.End(a);
  // Many other peers come, and idle ones are forgotten.
  for (size_t i = 0; i < CallLimits::kPeersMax; ++i) {
    limits.Begin(Of(std::to_string(i)), 100 * kSecond);
  }
  CHECK_FALSE(limits.BeginQuestion(a).empty());
  limits.EndQuestion(a);
  CHECK(limits.BeginQuestion(a).empty());
}

TEST_CASE("CallLimits: a long answer counts as several calls", "[rpc]") {
  CallLimits limits({.per_second_max = 10, .open_max = 0});
  const CallPeer a = limits.Begin(Of("a"), 0).peer;
  limits.Charge(a, CallLimits::kAnswerBytesOfCall - 1);
  CHECK(Admitted(limits, Of("a"), 100, 0) == 19);
  // No calls are left. It takes nearly five seconds to make up for these 49.
  limits.Charge(a, 49 * CallLimits::kAnswerBytesOfCall);
  CHECK(Refusal(limits, Of("a"), 4 * kSecond) ==
        "a has made the peer_calls_per_second_max=10 calls a second, long answers counted as "
        "several, that one peer may have here: ask less often, or raise that option of this "
        "daemon");
  CHECK(Admitted(limits, Of("a"), 100, 6 * kSecond) == 11);
  CHECK(Admitted(limits, Of("b"), 100, 0) == 20);
}

TEST_CASE("CallLimits: without limits every peer may call", "[rpc]") {
  CallLimits limits({.per_second_max = 0, .open_max = 0, .questions_open_max = 0});
  CHECK(Admitted(limits, Of("a"), 10'000, 0, false) == 10'000);
  const CallPeer a = limits.Begin(Of("a"), 0).peer;
  for (int i = 0; i < 10'000; ++i) CHECK(limits.BeginQuestion(a).empty());
  limits.Charge(a, uint64_t{1} << 40);
  CHECK(Refusal(limits, Of("a"), 0).empty());
}

TEST_CASE("CallLimits: a call that belongs to another peer is given back", "[rpc]") {
  CallLimits limits({.per_second_max = 1, .open_max = 1});
  for (int i = 0; i < 10; ++i) {
    REQUIRE(Refusal(limits, Of("a"), 0).empty());
    limits.Withdraw(Of("a"));
  }
}

TEST_CASE("CallLimits: each address of a shared name is a peer of its own", "[rpc]") {
  CallLimits limits({.per_second_max = 10, .open_max = 0});
  CHECK(Admitted(limits, Of("node", "10.0.0.1"), 100, 0) == 20);
  CHECK(Admitted(limits, Of("node", "10.0.0.2"), 100, 0) == 20);
  CHECK(Admitted(limits, Of("operator", "10.0.0.1"), 100, 0) == 20);
  CHECK(Refusal(limits, Of("node", "10.0.0.1"), 0)
            .starts_with("node (10.0.0.1) has made the peer_calls_per_second_max=10 calls"));
}

TEST_CASE("CallLimits: a name with many addresses leaves room for other names", "[rpc]") {
  CallLimits limits({.per_second_max = 1, .open_max = 1});
  const auto place = [](size_t i) { return Of("node", std::to_string(i)); };
  for (size_t i = 0; i < CallLimits::kPlacesMax; ++i) {
    REQUIRE(Refusal(limits, place(i), 0).empty());
  }
  const CallLimits::Begun one = limits.Begin(Of("node", "a"), 0);
  CHECK(one.refusal.empty());
  CHECK(Refusal(limits, Of("node", "b"), 0)
            .starts_with("node (other addresses) has the peer_calls_open_max=1"));
  CHECK(limits.peer_count() == CallLimits::kPlacesMax + 1);
  CHECK(Refusal(limits, Of("viewer", "a"), 0).empty());
  // Idle addresses are forgotten, and then there is room again.
  for (size_t i = 0; i < CallLimits::kPlacesMax; ++i) limits.End(place(i));
  CHECK(Refusal(limits, Of("node", "b"), 10 * kSecond).empty());
  CHECK(Refusal(limits, Of("node", "c"), 10 * kSecond).empty());
  // Two of them are the first one and the viewer, whose calls are open.
  CHECK(limits.peer_count() == 4);
}

TEST_CASE("CallLimits: a call that began in the group of the others ends there", "[rpc]") {
  CallLimits limits({.per_second_max = 0, .open_max = 1});
  for (size_t i = 0; i < CallLimits::kPeersMax; ++i) {
    REQUIRE(Refusal(limits, Of(std::to_string(i)), 0).empty());
  }
  const CallLimits::Begun among_others = limits.Begin(Of("a"), 0);
  for (size_t i = 0; i < CallLimits::kPeersMax; ++i) limits.End(Of(std::to_string(i)));
  const CallLimits::Begun by_itself = limits.Begin(Of("a"), 10 * kSecond);
  CHECK(by_itself.refusal.empty());
  limits.End(among_others.peer);
  CHECK_FALSE(Refusal(limits, Of("a"), 10 * kSecond).empty());
}

TEST_CASE("CallLimits: only so many peers are remembered", "[rpc]") {
  CallLimits limits({.per_second_max = 1, .open_max = 1});
  for (size_t i = 0; i < CallLimits::kPeersMax; ++i) {
    REQUIRE(Refusal(limits, Of(std::to_string(i)), 0).empty());
  }
  // All further peers count as one.
  const CallLimits::Begun other = limits.Begin(Of("a"), 0);
  CHECK(other.refusal.empty());
  CHECK(Refusal(limits, Of("b"), 0).starts_with("other peers has the peer_calls_open_max=1"));
  limits.End(other.peer);
  CHECK(Refusal(limits, Of("b"), 0).empty());
  CHECK(limits.peer_count() == CallLimits::kPeersMax + 1);
  // When the first ones are idle, they are forgotten.
  for (size_t i = 0; i < CallLimits::kPeersMax; ++i) limits.End(Of(std::to_string(i)));
  CHECK(Refusal(limits, Of("c"), 10 * kSecond).empty());
  CHECK(limits.peer_count() < 3);
}

membership::SecretHash Secret(uint32_t number) {
  membership::SecretHash hash;
  for (size_t byte = 0; byte < 4; ++byte) {
    hash.bytes[byte] = static_cast<uint8_t>(number >> 8 * byte);
  }
  return hash;
}

TEST_CASE("CallLimits: a process that has proven itself is counted by itself", "[rpc]") {
  CallLimits limits({.per_second_max = 1, .open_max = 1});
  CHECK_FALSE(limits.SessionOf(Secret(1)));
  limits.Prove(Secret(1), "node", 0);
  limits.Prove(Secret(2), "node", 0);
  const CallPeer one = limits.SessionOf(Secret(1)).value();
  const CallPeer other = limits.SessionOf(Secret(2)).value();
  CHECK(Refusal(limits, Of("node"), 0).empty());
  CHECK(Refusal(limits, one, 0).empty());
  CHECK(Refusal(limits, other, 0).empty());
  CHECK(Refusal(limits, one, 0)
            .starts_with("node (session 0100000000000000) has the peer_calls_open_max=1"));
  // Whoever shows it later, it stays what it was.
  limits.Prove(Secret(1), "other", kSecond);
  CHECK(limits.SessionOf(Secret(1)) == one);
  limits.Forget(Secret(1));
  limits.Forget(Secret(1));
  CHECK_FALSE(limits.SessionOf(Secret(1)));
  limits.End(one);
  CHECK(Refusal(limits, one, 10 * kSecond).empty());
}

TEST_CASE("CallLimits: a name with many proven processes leaves room for other names", "[rpc]") {
  CallLimits limits({.per_second_max = 1, .open_max = 1});
  constexpr uint32_t kSessions = 5000;
  static_assert(kSessions > CallLimits::kPeersMax);
  for (uint32_t i = 0; i < kSessions; ++i) {
    limits.Prove(Secret(i), "node", i);
    REQUIRE(Refusal(limits, limits.SessionOf(Secret(i)).value(), 0).empty());
  }
  // Each new name is still counted by itself, and so is a new process.
  for (uint32_t i = 0; i < 1000; ++i) {
    REQUIRE(Refusal(limits, Of(std::to_string(i)), 0).empty());
    REQUIRE(Refusal(limits, Of("operator", std::to_string(i)), 0).empty() ==
            (i <= CallLimits::kPlacesMax));
  }
  limits.Prove(Secret(kSessions), "other", 0);
  CHECK(Refusal(limits, limits.SessionOf(Secret(kSessions)).value(), 0).empty());
}

TEST_CASE("CallLimits: only so many proven processes are remembered", "[rpc]") {
  CallLimits limits({.per_second_max = 1, .open_max = 1});
  constexpr uint32_t kMost = CallLimits::kSessionsOfNameMax;
  limits.Prove(Secret(1'000'000), "other", 0);
  for (uint32_t i = 0; i < kMost; ++i) limits.Prove(Secret(i), "node", i);
  limits.Prove(Secret(0), "node", kMost);
  // The one of the same name that has been silent longest is forgotten.
  limits.Prove(Secret(kMost), "node", kMost);
  CHECK(limits.SessionOf(Secret(0)));
  CHECK_FALSE(limits.SessionOf(Secret(1)));
  CHECK(limits.SessionOf(Secret(kMost)));
  CHECK(limits.SessionOf(Secret(1'000'000)));
  CHECK(limits.session_count() == kMost + 1);
  // Then of all names.
  uint32_t number = 2'000'000;
  for (const char* name : {"a", "b", "c"}) {
    for (uint32_t i = 0; i < kMost; ++i) limits.Prove(Secret(number++), name, 2 * kMost);
  }
  CHECK(limits.session_count() == CallLimits::kSessionsMax);
  CHECK_FALSE(limits.SessionOf(Secret(1'000'000)));
  // One that is silent for long is forgotten.
  limits.Prove(Secret(0), "node", 2 * kMost + 1);
  limits.Prove(Secret(1), "node", 2 * kMost + 1 + CallLimits::kSessionNs);
  CHECK(limits.session_count() == 2);
}

TEST_CASE("CallLimits: open calls of forgotten processes are bounded, too", "[rpc]") {
  CallLimits limits({.per_second_max = 0, .open_max = 1});
  for (uint32_t i = 0; i < CallLimits::kSessionsOfNameMax; ++i) {
    limits.Prove(Secret(i), "node", 0);
    REQUIRE(Refusal(limits, limits.SessionOf(Secret(i)).value(), 0).empty());
    limits.Forget(Secret(i));
  }
  for (const bool is_first : {true, false}) {
    limits.Prove(Secret(1'000'000 + is_first), "node", 0);
    const CallLimits::Begun begun =
        limits.Begin(limits.SessionOf(Secret(1'000'000 + is_first)).value(), 0);
    CHECK(begun.peer.Text() == "node (other sessions)");
    CHECK(begun.refusal.empty() == is_first);
  }
}

}  // namespace
}  // namespace talweg::rpc
