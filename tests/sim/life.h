// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_LIFE_H_
#define TALWEG_TESTS_SIM_LIFE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/sim/profile.h"

namespace talweg::sim {

// A point that a life has reached: one of its connections was severed where its seed says.
inline constexpr const char* kSevered = "a connection is severed";

struct LifeResult {
  std::string violation;  // "" when every invariant held.
  std::vector<std::string> trace;
  uint64_t outcomes = 0;  // Results that ranks have taken and that were right.
  uint64_t events = 0;
  // How often each row of the failure tables, and each fault, was reached.
  std::map<std::string, uint64_t> coverage;
};

// Simulates one cluster's life. Everything follows from the kind and the seed.
LifeResult Live(Kind kind, uint64_t seed, bool with_trace);

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_LIFE_H_
