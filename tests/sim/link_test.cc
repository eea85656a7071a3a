// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include <catch2/catch.hpp>

#include "tests/sim/covering_lives.h"
#include "tests/sim/link_life.h"

namespace talweg::sim {
namespace {

constexpr uint64_t kLives = 300;

constexpr const char* kCoverage[] = {
    "a job is alone",           "what it carries is measured",      "jobs share the link",
    "credit is held",           "a job is slow for another reason", "a job is not at all lanes",
    "a job pauses at one lane",
};

TEST_CASE("A full link is shared by weight and never left idle for that", "[sim]") {
  CheckThatLivesReach(kCoverage, kLives, LiveOnLink);
}

}  // namespace
}  // namespace talweg::sim
