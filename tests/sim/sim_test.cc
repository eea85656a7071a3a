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
#include <random>
#include <string>

#include <catch2/catch.hpp>

#include "tests/sim/coverage.h"
#include "tests/sim/found_seeds.h"
#include "tests/sim/life.h"
#include "tests/sim/parts.h"

namespace talweg::sim {
namespace {

constexpr uint64_t kLives = 10'000;
// New seeds add up from run to run.
constexpr uint64_t kNewLives = 5'000;
// With a sanitizer, a life takes several times as long.
constexpr uint64_t kSanitizedLives = 1'000;
// With fewer lives than this, chance decides which points are reached.
constexpr uint64_t kLivesForCoverage = 4'000;
constexpr int kFailuresShown = 5;
// The kinds take turns. Each kind has its own seeds.
constexpr Kind kTurns[] = {Kind::kUsual,    Kind::kGathers,  Kind::kHasty,    Kind::kLate,
                           Kind::kRecovery, Kind::kUsual,    Kind::kLanes,    Kind::kUsual,
                           Kind::kSilent,   Kind::kRecovery, Kind::kGroups,   Kind::kHosts,
                           Kind::kHosts,    Kind::kStandbys, Kind::kStandbys, Kind::kPatience};

struct Choice {
  Kind kind;
  uint64_t seed;
};

// Each kind's seeds begin at `first`.
Choice ChoiceOf(uint64_t life, uint64_t first) {
  const Kind* const turn = kTurns + life % std::size(kTurns);
  const auto in_a_row = static_cast<uint64_t>(std::count(kTurns, std::end(kTurns), *turn));
  const auto before = static_cast<uint64_t>(std::count(kTurns, turn, *turn));
  return {*turn, first + life / std::size(kTurns) * in_a_row + before};
}

std::string ReplayText(const Choice& choice) {
  return std::string("replay it with: bazel run //tests/sim:replay -- --kind=") +
         KindName(choice.kind) + " --seed=" + std::to_string(choice.seed);
}

uint64_t LivesWanted(uint64_t usually) {
  if (const char* const lives = std::getenv("TALWEG_SIM_LIVES")) {
    return std::strtoull(lives, nullptr, 10);
  }
  return std::getenv("TALWEG_SANITIZER") != nullptr ? kSanitizedLives : usually;
}

// Returns a seed that no run has drawn before, or the one that the environment names to repeat a
// run.
uint64_t FirstNewSeed() {
  if (const char* const first = std::getenv("TALWEG_SIM_FIRST_SEED")) {
    return std::strtoull(first, nullptr, 10);
  }
  constexpr uint64_t kMillion = 1'000'000;
  return kMillion * (10 + std::random_device()() % kMillion);
}

// A broken TALWEG_CHECK ends the process. This says in which life.
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

// Counts the lives of one test case.
class Lives {
 public:
  Lives() { std::signal(SIGABRT, OnAbort); }
  ~Lives() { std::signal(SIGABRT, SIG_DFL); }
  Lives(const Lives&) = delete;
  Lives& operator=(const Lives&) = delete;

  // Returns whether to go on: several broken lives are enough.
  bool Add(const Choice& choice) {
    choice_now = choice;
    const LifeResult result = Live(choice.kind, choice.seed, false);
    ++lives_;
    outcomes_ += result.outcomes;
    events_ += result.events;
    for (const auto& [point, count] : result.coverage) coverage_[point] += count;
    if (result.violation.empty()) return true;
    FAIL_CHECK(result.violation << "\n" << ReplayText(choice));
    return ++failures_ < kFailuresShown;
  }

  std::string Text() const {
    return std::to_string(lives_) + " lives, " + std::to_string(events_) + " events, " +
           std::to_string(outcomes_) + " results taken";
  }
  const std::map<std::string, uint64_t>& coverage() const { return coverage_; }
  uint64_t CountOf(const std::string& point) const {
    const auto found = coverage_.find(point);
    return found == coverage_.end() ? 0 : found->second;
  }

 private:
  uint64_t lives_ = 0;
  uint64_t events_ = 0;
  uint64_t outcomes_ = 0;
  int failures_ = 0;
  std::map<std::string, uint64_t> coverage_;
};

TEST_CASE("Lives that once broke something break nothing now", "[sim]") {
  if (!IsOfThisPart(0)) return;
  Lives lives;
  for (const FoundSeed& found : kFoundSeeds) {
    if (!lives.Add({found.kind, found.seed})) break;
  }
}

TEST_CASE("Clusters live through every fault without breaking an invariant", "[sim]") {
  if (!IsOfThisPart(0)) return;
  const uint64_t wanted = LivesWanted(kLives);
  Lives lives;
  for (uint64_t life = 0; life < wanted && lives.Add(ChoiceOf(life, 0)); ++life) {
  }
  std::cout << lives.Text() << "\n";
  for (const auto& [point, count] : lives.coverage()) {
    std::cout << "  " << count << "  " << point << "\n";
  }
  if (wanted < kLivesForCoverage) return;
  for (const char* const point : kCoverage) {
    CAPTURE(point);
    CHECK(lives.CountOf(point) > 0);
  }
}

TEST_CASE("A job ends well wherever one of its connections is severed", "[sim]") {
  if (!IsOfThisPart(1)) return;
  const uint64_t every = std::getenv("TALWEG_SANITIZER") != nullptr ? 10 : 1;
  Lives lives;
  for (uint64_t shape = 0; shape < kSeveredShapes; ++shape) {
    uint64_t severed = 0;
    for (uint64_t step = 0;; step += every) {
      if (!lives.Add({Kind::kSevered, step * kSeveredShapes + shape})) return;
      if (lives.CountOf(kSevered) == severed) break;  // The conversation is over before this step.
      severed = lives.CountOf(kSevered);
    }
  }
  std::cout << lives.Text() << ", all but " << kSeveredShapes << " of them severed\n";
  CHECK(lives.CountOf(kSevered) > 1000 / every);
}

TEST_CASE("Clusters live through lives that nobody has seen before", "[sim]") {
  if (!IsOfThisPart(1)) return;
  const char* const soak = std::getenv("TALWEG_SOAK_S");
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::seconds(soak != nullptr ? std::atoi(soak) : 0);
  const uint64_t wanted = LivesWanted(kNewLives);
  const uint64_t first = FirstNewSeed();
  // Printed before the first life, so that the seeds are known whatever becomes of this process.
  std::cout << "new seeds from " << first << " on; the same again: ./test --first-seed=" << first
            << " sim_test" << std::endl;
  Lives lives;
  for (uint64_t life = 0; life < wanted || std::chrono::steady_clock::now() < end; ++life) {
    if (!lives.Add(ChoiceOf(life, first))) break;
  }
  std::cout << lives.Text() << "\n";
}

}  // namespace
}  // namespace talweg::sim
