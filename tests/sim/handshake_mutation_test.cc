// SPDX-License-Identifier: Apache-2.0
//
// An attacker between the ends of a connection finds each of these bugs in their proofs.
#include <cstdint>
#include <string>

#include <catch2/catch.hpp>

#include "tests/sim/handshake_life.h"
#include "tests/sim/planted_bugs.h"

namespace talweg::sim {
namespace {

enum class Kind : uint8_t { kHandshake };

// Written from handshake_mutations.txt.
constexpr PlantedBug<Kind> kBugs[] = {
#include "tests/sim/handshake_mutations.inc"
};

std::string Live(uint64_t seed) { return LiveHandshakes(seed).violation; }

TEST_CASE("Every deliberate bug lets somebody in, or nobody", "[sim]") {
  CheckThatLivesFind(kBugs, Live);
}

TEST_CASE("Lives come to every one of them, and without it break nothing", "[sim]") {
  CheckThatLivesComeTo(kBugs, Live);
}

}  // namespace
}  // namespace talweg::sim
