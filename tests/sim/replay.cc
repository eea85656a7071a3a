// SPDX-License-Identifier: Apache-2.0
// Lives one life again and prints all that happens in it: bazel run //tests/sim:replay -- --seed=N
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/sim/life.h"

int main(int argc, char** argv) {
  if (argc != 2 || std::strncmp(argv[1], "--seed=", 7) != 0) {
    std::fprintf(stderr, "usage: replay --seed=N\n");
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
