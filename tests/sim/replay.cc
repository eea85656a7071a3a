// SPDX-License-Identifier: Apache-2.0
// Lives one life again and prints all that happens in it: bazel run //tests/sim:replay -- --seed=N
// Or lives many, and prints which of them break something: --seeds=FIRST-LAST
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/sim/life.h"

namespace {

int LiveAll(uint64_t first, uint64_t last) {
  int broken = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    const std::string violation = talweg::sim::Live(seed, false).violation;
    if (violation.empty()) continue;
    ++broken;
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), violation.c_str());
    std::fflush(stdout);
  }
  std::printf("seeds %llu to %llu: %d broken\n", static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(last), broken);
  return broken == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strncmp(argv[1], "--seeds=", 8) == 0) {
    char* end = nullptr;
    const uint64_t first = std::strtoull(argv[1] + 8, &end, 10);
    if (*end == '-') return LiveAll(first, std::strtoull(end + 1, nullptr, 10));
  }
  if (argc != 2 || std::strncmp(argv[1], "--seed=", 7) != 0) {
    std::fprintf(stderr, "usage: replay --seed=N | --seeds=FIRST-LAST\n");
    return 2;
  }
  const uint64_t seed = std::strtoull(argv[1] + 7, nullptr, 10);
  const talweg::sim::LifeResult result = talweg::sim::Live(seed, true);
  for (const std::string& line : result.trace) std::printf("%s\n", line.c_str());
  std::printf("%llu events, %llu results taken; %s\n",
              static_cast<unsigned long long>(result.events),
              static_cast<unsigned long long>(result.outcomes),
              result.violation.empty() ? "every invariant held" : result.violation.c_str());
  return result.violation.empty() ? 0 : 1;
}
