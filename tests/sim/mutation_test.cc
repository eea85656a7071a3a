// SPDX-License-Identifier: Apache-2.0
// The simulation finds bugs: each of these breaks a life within a given number of seeds, once it is
// put into a core.
#include "tests/sim/mutation.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <set>
#include <string>

#include <catch2/catch.hpp>

#include "tests/sim/life.h"
#include "tests/sim/parts.h"
#include "tests/sim/planted_bugs.h"

namespace talweg::sim {
namespace {

// The most lives that may pass until every place of the list is reached.
constexpr uint64_t kSeedsMax = 4'000;

// The file is generated from mutations.txt. What breaks is an invariant or a rule of
// docs/protocol.md.
constexpr PlantedBug<Kind> kMutations[] = {
#include "tests/sim/mutations.inc"
};

TEST_CASE("Every deliberate bug breaks a life", "[sim]") {
  if (std::getenv("TALWEG_SANITIZER") != nullptr) {
    if (!IsOfThisPart(0)) return;
    std::printf(
        "SKIPPED: a core with a deliberate bug may touch what it must not; ./test without a "
        "sanitizer looks for them\n");
    return;
  }
  const char* const only = std::getenv("TALWEG_SIM_MUTATION");
  const char* const lives = std::getenv("TALWEG_SIM_LIVES");
  uint64_t number = 0;
  for (const PlantedBug<Kind>& mutation : kMutations) {
    if (!IsOfThisPart(number++)) continue;
    if (only != nullptr && std::string(only) != mutation.name) continue;
    TurnOnMutation(mutation.name);
    const uint64_t seeds_max =
        lives != nullptr ? std::strtoull(lives, nullptr, 10) : mutation.seeds_max;
    uint64_t seed = mutation.first_seed;
    const uint64_t end = seed + seeds_max;
    std::string violation;
    while (seed < end && violation.empty())
      violation = Live(mutation.kind, seed++, false).violation;
    CAPTURE(mutation.name, mutation.breaks);
    CHECK(!violation.empty());
    TurnOnMutation("");
    CHECK(Live(mutation.kind, seed - 1, false).violation == "");  // It is the bug that breaks it.
    std::printf("%5llu seeds (%s)  %-30s %s\n             result: %.120s\n",
                static_cast<unsigned long long>(seed - mutation.first_seed),
                KindName(mutation.kind), mutation.name, mutation.breaks,
                violation.empty() ? "NOT FOUND" : violation.c_str());
  }
}

TEST_CASE("Lives reach every deliberate bug that the list plants", "[sim]") {
  if (!IsOfThisPart(0)) return;
  TurnOnMutation("");
  std::set<std::string> listed;
  for (const PlantedBug<Kind>& mutation : kMutations) listed.insert(mutation.name);
  // Some places are reached in one of hundreds of lives only.
  uint64_t seed = 0;
  while (seed < 300 || (seed < kSeedsMax && MutationsSeen() != listed)) {
    constexpr Kind kTurns[] = {Kind::kUsual, Kind::kGroups, Kind::kStandbys, Kind::kHasty,
                               Kind::kGathers};
    const Kind kind = kTurns[seed % std::size(kTurns)];
    CHECK(Live(kind, seed++, false).violation.empty());
  }
  for (const std::string& name : listed) {
    CAPTURE(name);
    CHECK(MutationsSeen().contains(name));
  }
}

}  // namespace
}  // namespace talweg::sim
