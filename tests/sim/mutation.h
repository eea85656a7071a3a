// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_MUTATION_H_
#define TALWEG_TESTS_SIM_MUTATION_H_

#include <set>
#include <string>

// The switches of the deliberate bugs that mutate.py plants, for the one thread that lives such
// lives.
namespace talweg::sim {

// Turns on `name` alone; "" turns all off.
void TurnOnMutation(const std::string& name);
// Those that the cores have come across so far, on or off.
const std::set<std::string>& MutationsSeen();

// Lives as long as the process; the same for every use of a name.
const bool* MutationSwitch(const char* name);

}  // namespace talweg::sim

// Whether a bug is on, in a mutated copy of a source.
#define TALWEG_MUTANT(name)                                                \
  (*[] {                                                                   \
    static const bool* const is_on = ::talweg::sim::MutationSwitch(#name); \
    return is_on;                                                          \
  }())

#endif  // TALWEG_TESTS_SIM_MUTATION_H_
