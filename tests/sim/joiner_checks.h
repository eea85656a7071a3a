// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_JOINER_CHECKS_H_
#define TALWEG_TESTS_SIM_JOINER_CHECKS_H_

#include <vector>

#include "libs/pipeline/member.h"

namespace talweg::sim {

// Rule 8: when a view with joiners is told to the first, no member of the one before has a round
// open, and all hold the same rounds. Throws Violation otherwise.
void CheckNothingOpen(const std::vector<const pipeline::Member*>& members);

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_JOINER_CHECKS_H_
