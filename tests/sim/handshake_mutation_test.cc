// SPDX-License-Identifier: Apache-2.0
//
// Each of these bugs is in the proofs of a handshake. An attacker between the ends of a connection
// finds it.
#include <cstdint>
#include <string>

#include <catch2/catch.hpp>

#include "tests/sim/handshake_life.h"
#include "tests/sim/planted_bugs.h"

namespace talweg::sim {
namespace {

enum class Kind : uint8_t { kHandshake };

// The file is generated from handshake_mutations.txt.
constexpr PlantedBug<Kind> kBugs[] = {
#include "tests/sim/handshake_mutations.inc"
};

std::string Live(uint64_t seed) { return LiveHandshakes(seed).violation; }

TEST_CASE("Every deliberate bug lets in a stranger or keeps out a member", "[sim]") {
  CheckThatLivesFind(kBugs, Live);
}

TEST_CASE("Lives reach every deliberate bug and break nothing without it", "[sim]") {
  CheckThatLivesComeTo(kBugs, Live);
}

}  // namespace
}  // namespace talweg::sim
