// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <map>
#include <string>

#include <catch2/catch.hpp>

#include "tests/sim/coverage.h"
#include "tests/sim/life.h"

namespace talweg::sim {
namespace {

constexpr uint64_t kLives = 10'000;
// A sanitizer makes a life several times as long.
constexpr uint64_t kSanitizedLives = 1'000;
// Below this many, chance decides which points are reached.
constexpr uint64_t kLivesForCoverage = 4'000;
constexpr int kFailuresShown = 5;
// The kinds take turns; each has seeds of its own, from 0.
constexpr Kind kTurns[] = {Kind::kUsual,    Kind::kUsual,   Kind::kUsual, Kind::kUsual,
                           Kind::kRecovery, Kind::kUsual,   Kind::kUsual, Kind::kUsual,
                           Kind::kSilent,   Kind::kRecovery, Kind::kGroups, Kind::kGroups,
                           Kind::kGroups};

struct Choice {
  Kind kind;
  uint64_t seed;
};

Choice ChoiceOf(uint64_t life) {
  const Kind* const turn = kTurns + life % std::size(kTurns);
  const auto in_a_row = static_cast<uint64_t>(std::count(kTurns, std::end(kTurns), *turn));
  const auto before = static_cast<uint64_t>(std::count(kTurns, turn, *turn));
  return {*turn, life / std::size(kTurns) * in_a_row + before};
}

std::string ReplayText(const Choice& choice) {
  return std::string("replay it with: bazel run //tests/sim:replay -- --kind=") +
         KindName(choice.kind) + " --seed=" + std::to_string(choice.seed);
}

uint64_t LivesWanted() {
  if (const char* const lives = std::getenv("TALWEG_SIM_LIVES")) {
    return std::strtoull(lives, nullptr, 10);
  }
  return std::getenv("TALWEG_SANITIZER") != nullptr ? kSanitizedLives : kLives;
}

// A broken TALWEG_CHECK ends the process: say in which life.
Choice choice_now{};
void OnAbort(int) {
  char text[128];
  const int length =
      std::snprintf(text, sizeof text,
                    "replay it with: bazel run //tests/sim:replay -- --kind=%s "
                    "--seed=%llu\n",
                    KindName(choice_now.kind), static_cast<unsigned long long>(choice_now.seed));
  if (write(STDERR_FILENO, text, static_cast<size_t>(length)) < 0) return;
}

TEST_CASE("Clusters live through every fault without breaking an invariant", "[sim]") {
  const char* const soak = std::getenv("TALWEG_SOAK_S");
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::seconds(soak != nullptr ? std::atoi(soak) : 0);
  const uint64_t lives = LivesWanted();
  std::map<std::string, uint64_t> coverage;
  uint64_t outcomes = 0;
  uint64_t events = 0;
  uint64_t life = 0;
  int failures = 0;
  std::signal(SIGABRT, OnAbort);
  for (; life < lives || std::chrono::steady_clock::now() < end; ++life) {
    choice_now = ChoiceOf(life);
    const LifeResult result = Live(choice_now.kind, choice_now.seed, false);
    outcomes += result.outcomes;
    events += result.events;
    for (const auto& [point, count] : result.coverage) coverage[point] += count;
    if (!result.violation.empty()) {
      FAIL_CHECK(result.violation << "\n" << ReplayText(choice_now));
      if (++failures == kFailuresShown) break;
    }
  }
  std::signal(SIGABRT, SIG_DFL);
  std::cout << life << " lives, " << events << " events, " << outcomes << " results taken\n";
  for (const auto& [point, count] : coverage) std::cout << "  " << count << "  " << point << "\n";
  if (lives < kLivesForCoverage) return;
  for (const char* const point : kCoverage) {
    CAPTURE(point);
    CHECK(coverage[point] > 0);
  }
}

}  // namespace
}  // namespace talweg::sim
