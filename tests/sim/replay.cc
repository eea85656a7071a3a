// SPDX-License-Identifier: Apache-2.0
// Lives one life again and prints all that happens in it:
//   bazel run //tests/sim:replay --
//   [--kind=usual|recovery|silent|groups|hosts|standbys|late|patience|hasty|gathers|lanes|severed]
//   --seed=N
// With --seeds=FIRST-LAST it lives many lives and prints which of them break something.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/sim/life.h"

namespace {

using talweg::sim::Kind;

int LiveAll(Kind kind, uint64_t first, uint64_t last) {
  int broken = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    const std::string violation = talweg::sim::Live(kind, seed, false).violation;
    if (violation.empty()) continue;
    ++broken;
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), violation.c_str());
    std::fflush(stdout);
  }
  std::printf("seeds %llu to %llu: %d broken\n", static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(last), broken);
  return broken == 0 ? 0 : 1;
}

int LiveOne(Kind kind, uint64_t seed) {
  const talweg::sim::LifeResult result = talweg::sim::Live(kind, seed, true);
  for (const std::string& line : result.trace) std::printf("%s\n", line.c_str());
  std::printf("%llu events, %llu results taken; %s\n",
              static_cast<unsigned long long>(result.events),
              static_cast<unsigned long long>(result.outcomes),
              result.violation.empty() ? "every invariant held" : result.violation.c_str());
  return result.violation.empty() ? 0 : 1;
}

// Returns whether `argument` is --name=VALUE. If so, `value` points to VALUE.
bool Is(const char* argument, const std::string& name, const char*& value) {
  const std::string prefix = "--" + name + "=";
  if (std::strncmp(argument, prefix.c_str(), prefix.size()) != 0) return false;
  value = argument + prefix.size();
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Kind kind = Kind::kUsual;
  const char* value = nullptr;
  int next = 1;
  if (next < argc && Is(argv[next], "kind", value)) {
    for (const Kind each : talweg::sim::kKinds) {
      if (std::strcmp(value, talweg::sim::KindName(each)) != 0) continue;
      kind = each;
      ++next;
      break;
    }
  }
  if (next + 1 == argc && Is(argv[next], "seed", value)) {
    return LiveOne(kind, std::strtoull(value, nullptr, 10));
  }
  if (next + 1 == argc && Is(argv[next], "seeds", value)) {
    char* end = nullptr;
    const uint64_t first = std::strtoull(value, &end, 10);
    if (*end == '-') return LiveAll(kind, first, std::strtoull(end + 1, nullptr, 10));
  }
  std::fprintf(stderr,
               "usage: replay "
               "[--kind=usual|recovery|silent|groups|hosts|standbys|late|patience|hasty|gathers|"
               "lanes|severed] "
               "--seed=N | --seeds=FIRST-LAST\n");
  return 2;
}
