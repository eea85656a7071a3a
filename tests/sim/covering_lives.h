// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_COVERING_LIVES_H_
#define TALWEG_TESTS_SIM_COVERING_LIVES_H_

#include <cstdint>
#include <map>
#include <string>

#include <catch2/catch.hpp>

namespace talweg::sim {

// Checks that the first `lives` lives break nothing, and together reach all points in `wanted`.
// `live(seed)` returns a `violation`, and a `coverage`: how often each point was reached.
template <typename Live, typename Wanted>
void CheckThatLivesReach(const Wanted& wanted, uint64_t lives, const Live& live) {
  std::map<std::string, uint64_t> coverage;
  for (uint64_t seed = 0; seed < lives; ++seed) {
    const auto result = live(seed);
    CAPTURE(seed);
    REQUIRE(result.violation == "");
    for (const auto& [what, count] : result.coverage) coverage[what] += count;
  }
  for (const char* what : wanted) {
    CAPTURE(what);
    CHECK(coverage[what] > 0);
  }
}

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_COVERING_LIVES_H_
