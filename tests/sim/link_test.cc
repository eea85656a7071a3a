// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <map>
#include <string>

#include <catch2/catch.hpp>

#include "tests/sim/link_life.h"

namespace talweg::sim {
namespace {

constexpr uint64_t kLives = 300;

constexpr const char* kCoverage[] = {
    "a job is alone", "what it carries is measured",      "jobs share the link",
    "credit is held", "a job is slow for another reason",
};

TEST_CASE("A full link is shared by weight, and never idle for it", "[sim]") {
  std::map<std::string, uint64_t> coverage;
  for (uint64_t seed = 0; seed < kLives; ++seed) {
    const LinkResult result = LiveOnLink(seed);
    CAPTURE(seed);
    CHECK(result.violation == "");
    for (const auto& [what, count] : result.coverage) coverage[what] += count;
  }
  for (const char* what : kCoverage) {
    CAPTURE(what);
    CHECK(coverage[what] > 0);
  }
}

}  // namespace
}  // namespace talweg::sim
