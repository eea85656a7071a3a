// SPDX-License-Identifier: Apache-2.0
// Jobs that meet on a link find each of these bugs in how it is shared.
#include <cstdint>
#include <cstdio>
#include <set>
#include <string>

#include <catch2/catch.hpp>

#include "tests/sim/link_life.h"
#include "tests/sim/mutation.h"

namespace talweg::sim {
namespace {

enum class Kind : uint8_t { kLink };

struct Mutation {
  const char* name;
  const char* breaks;
  Kind kind;
  uint64_t seeds_max;  // So many lives, at most, find it.
};

// Written from link_mutations.txt.
constexpr Mutation kMutations[] = {
#include "tests/sim/link_mutations.inc"
};

TEST_CASE("Every deliberate bug gives somebody less of a link, or leaves it idle", "[sim]") {
  for (const Mutation& mutation : kMutations) {
    TurnOnMutation(mutation.name);
    uint64_t seed = 0;
    std::string violation;
    while (seed < mutation.seeds_max && violation.empty()) {
      violation = LiveOnLink(seed++).violation;
    }
    CAPTURE(mutation.name, mutation.breaks);
    CHECK(!violation.empty());
    std::printf("%5llu seeds  %-24s %s\n             found as: %s\n",
                static_cast<unsigned long long>(seed), mutation.name, mutation.breaks,
                violation.empty() ? "NOT FOUND" : violation.c_str());
  }
  TurnOnMutation("");
}

TEST_CASE("Lives come to every one of them, and without it break nothing", "[sim]") {
  TurnOnMutation("");
  for (uint64_t seed = 0; seed < 100; ++seed) CHECK(LiveOnLink(seed).violation == "");
  for (const Mutation& mutation : kMutations) {
    CAPTURE(mutation.name);
    CHECK(MutationsSeen().contains(mutation.name));
  }
}

}  // namespace
}  // namespace talweg::sim
