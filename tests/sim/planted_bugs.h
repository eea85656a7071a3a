// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_PLANTED_BUGS_H_
#define TALWEG_TESTS_SIM_PLANTED_BUGS_H_

#include <cstdint>
#include <cstdio>
#include <string>

#include <catch2/catch.hpp>

#include "tests/sim/mutation.h"

// Tests whose lives are of one kind and follow from a seed check here that lives find each
// deliberate bug of a list. `live(seed)` returns what was broken, or "".
namespace talweg::sim {

// A row of a list's table, which mutate.py writes.
template <typename Kind>
struct PlantedBug {
  const char* name;
  const char* breaks;
  Kind kind;
  uint64_t seeds_max;   // The most lives until one finds it.
  uint64_t first_seed;  // The first of these lives.
};

template <typename Bugs, typename Live>
void CheckThatLivesFind(const Bugs& bugs, const Live& live) {
  for (const auto& bug : bugs) {
    TurnOnMutation(bug.name);
    uint64_t seed = bug.first_seed;
    const uint64_t end = seed + bug.seeds_max;
    std::string violation;
    while (seed < end && violation.empty()) violation = live(seed++);
    CAPTURE(bug.name, bug.breaks);
    CHECK(!violation.empty());
    TurnOnMutation("");
    CHECK(live(seed - 1) == "");  // It is the bug that breaks the life.
    std::printf("%5llu seeds  %-24s %s\n             result: %s\n",
                static_cast<unsigned long long>(seed - bug.first_seed), bug.name, bug.breaks,
                violation.empty() ? "NOT FOUND" : violation.c_str());
  }
}

template <typename Bugs, typename Live>
void CheckThatLivesComeTo(const Bugs& bugs, const Live& live) {
  TurnOnMutation("");
  for (uint64_t seed = 0; seed < 100; ++seed) CHECK(live(seed) == "");
  for (const auto& bug : bugs) {
    CAPTURE(bug.name);
    CHECK(MutationsSeen().contains(bug.name));
  }
}

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_PLANTED_BUGS_H_
