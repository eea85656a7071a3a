// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_MUTATION_H_
#define TALWEG_TESTS_SIM_MUTATION_H_

#include <set>
#include <string>

// The switches of libs/base/mutation.h, for the one thread that lives mutated lives.
namespace talweg::sim {

// Turns on `name` alone; "" turns all off.
void TurnOnMutation(const std::string& name);
// Those that the cores have come across so far, on or off.
const std::set<std::string>& MutationsSeen();

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_MUTATION_H_
