// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include <catch2/catch.hpp>

#include "tests/sim/covering_lives.h"
#include "tests/sim/handshake_life.h"

namespace talweg::sim {
namespace {

constexpr uint64_t kLives = 2'000;

// What the attacker must have tried, and what outcomes there must have been.
constexpr const char* kCoverage[] = {
    "a Hello under another member's name",
    "a Hello is refused",
    "a Hello is answered",
    "a Hello comes back to its maker as an Answer",
    "an Answer is refused",
    "an Answer is taken",
    "an Answer comes back to its maker as a Proof",
    "a Proof is refused",
    "a Proof is taken",
    "a connection stands",
    "a token under another member's name",
    "a token is refused",
    "a token that was used, or is late, is refused",
    "a token lets its member in",
};

TEST_CASE("Handshakes: nobody passes for another, and nothing is accepted twice", "[sim]") {
  CheckThatLivesReach(kCoverage, kLives, LiveHandshakes);
}

}  // namespace
}  // namespace talweg::sim
