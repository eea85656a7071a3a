// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_MUTATION_H_
#define TALWEG_TESTS_SIM_MUTATION_H_

#include <set>
#include <string>

// The switches of the deliberate bugs that mutate.py plants. Used by the one thread that runs such
// lives.
namespace talweg::sim {

// Turns on only `name`; "" turns all off.
void TurnOnMutation(const std::string& name);
// Returns the mutations that the cores have reached so far, on or off.
const std::set<std::string>& MutationsSeen();

// Returns the switch of a name: valid for the process's life, and the same for every use.
const bool* MutationSwitch(const char* name);

}  // namespace talweg::sim

// Whether a bug is on, in a mutated copy of a source.
#define TALWEG_MUTANT(name)                                                \
  (*[] {                                                                   \
    static const bool* const is_on = ::talweg::sim::MutationSwitch(#name); \
    return is_on;                                                          \
  }())

#endif  // TALWEG_TESTS_SIM_MUTATION_H_
