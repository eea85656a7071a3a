// SPDX-License-Identifier: Apache-2.0
// Each of these bugs is in how a link is shared. Jobs that meet on a link find it.
#include <cstdint>
#include <string>

#include <catch2/catch.hpp>

#include "tests/sim/link_life.h"
#include "tests/sim/planted_bugs.h"

namespace talweg::sim {
namespace {

enum class Kind : uint8_t { kLink };

// The file is generated from link_mutations.txt.
constexpr PlantedBug<Kind> kBugs[] = {
#include "tests/sim/link_mutations.inc"
};

std::string Live(uint64_t seed) { return LiveOnLink(seed).violation; }

TEST_CASE("Every deliberate bug gives somebody less of a link, or leaves it idle", "[sim]") {
  CheckThatLivesFind(kBugs, Live);
}

TEST_CASE("Lives reach every deliberate bug and break nothing without it", "[sim]") {
  CheckThatLivesComeTo(kBugs, Live);
}

}  // namespace
}  // namespace talweg::sim
