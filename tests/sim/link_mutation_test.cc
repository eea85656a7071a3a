// SPDX-License-Identifier: Apache-2.0
// Jobs that meet on a link find each of these bugs in how it is shared.
#include <cstdint>
#include <string>

#include <catch2/catch.hpp>

#include "tests/sim/link_life.h"
#include "tests/sim/planted_bugs.h"

namespace talweg::sim {
namespace {

enum class Kind : uint8_t { kLink };

// Written from link_mutations.txt.
constexpr PlantedBug<Kind> kBugs[] = {
#include "tests/sim/link_mutations.inc"
};

std::string Live(uint64_t seed) { return LiveOnLink(seed).violation; }

TEST_CASE("Every deliberate bug gives somebody less of a link, or leaves it idle", "[sim]") {
  CheckThatLivesFind(kBugs, Live);
}

TEST_CASE("Lives come to every one of them, and without it break nothing", "[sim]") {
  CheckThatLivesComeTo(kBugs, Live);
}

}  // namespace
}  // namespace talweg::sim
