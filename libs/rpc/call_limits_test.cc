// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/call_limits.h"

#include <cstdint>
#include <string>

#include <catch2/catch.hpp>

namespace talweg::rpc {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

int Admitted(CallLimits& limits, const std::string& peer, int calls, int64_t now_ns,
             bool end = true) {
  int admitted = 0;
  for (int i = 0; i < calls; ++i) {
    if (!limits.Begin(peer, now_ns).empty()) continue;
    ++admitted;
    if (end) limits.End(peer);
  }
  return admitted;
}

TEST_CASE("CallLimits: a peer makes so many calls a second, twice as many at once", "[rpc]") {
  CallLimits limits({.per_second_max = 10, .open_max = 0});
  CHECK(Admitted(limits, "a", 100, 0) == 20);
  CHECK(Admitted(limits, "a", 100, kSecond / 2) == 5);
  CHECK(Admitted(limits, "a", 100, kSecond) == 5);
  CHECK(Admitted(limits, "a", 100, 100 * kSecond) == 20);
  // Others are not touched by that.
  CHECK(Admitted(limits, "b", 100, 100 * kSecond) == 20);
  CHECK(limits.refused_count() == 80 + 95 + 95 + 80 + 80);
  CHECK(limits.Begin("a", 100 * kSecond) ==
        "a has made the peer_calls_per_second_max=10 calls a second that one peer may have here: "
        "ask less often, or raise that option of this daemon");
}

TEST_CASE("CallLimits: a peer has so many calls open", "[rpc]") {
  CallLimits limits({.per_second_max = 0, .open_max = 3});
  CHECK(Admitted(limits, "a", 5, 0, false) == 3);
  CHECK(limits.Begin("a", 0) ==
        "a has the peer_calls_open_max=3 calls open that one peer may have here: ask less often, "
        "or raise that option of this daemon");
  CHECK(Admitted(limits, "b", 5, 0, false) == 3);
  limits.End("a");
  CHECK(Admitted(limits, "a", 5, 0, false) == 1);
}

TEST_CASE("CallLimits: without limits all may call", "[rpc]") {
  CallLimits limits({.per_second_max = 0, .open_max = 0});
  CHECK(Admitted(limits, "a", 10'000, 0, false) == 10'000);
}

TEST_CASE("CallLimits: a call that is another peer's is given back", "[rpc]") {
  CallLimits limits({.per_second_max = 1, .open_max = 1});
  for (int i = 0; i < 10; ++i) {
    REQUIRE(limits.Begin("a", 0).empty());
    limits.Withdraw("a");
  }
}

TEST_CASE("CallLimits: what is remembered is bounded", "[rpc]") {
  CallLimits limits({.per_second_max = 1, .open_max = 1});
  for (size_t i = 0; i < CallLimits::kPeersMax; ++i) {
    REQUIRE(limits.Begin(std::to_string(i), 0).empty());
  }
  // All others are one peer together.
  CHECK(limits.Begin("a", 0).empty());
  CHECK(limits.Begin("b", 0).starts_with("other peers has the peer_calls_open_max=1"));
  limits.End("a");
  CHECK(limits.Begin("b", 0).empty());
  CHECK(limits.peer_count() == CallLimits::kPeersMax + 1);
  // When the first are idle, they are forgotten.
  for (size_t i = 0; i < CallLimits::kPeersMax; ++i) limits.End(std::to_string(i));
  CHECK(limits.Begin("c", 10 * kSecond).empty());
  CHECK(limits.peer_count() < 3);

  for (uint32_t i = 0; i <= CallLimits::kProvenMax; ++i) {
    membership::SecretHash hash;
    for (size_t byte = 0; byte < 4; ++byte) hash.bytes[byte] = static_cast<uint8_t>(i >> 8 * byte);
    limits.Prove(hash, i);
    if (i == 0) CHECK(limits.IsProven(hash));
  }
  CHECK_FALSE(limits.IsProven(membership::SecretHash{}));  // The oldest.
}

}  // namespace
}  // namespace talweg::rpc
