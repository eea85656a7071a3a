// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_JOINER_CHECKS_H_
#define TALWEG_TESTS_SIM_JOINER_CHECKS_H_

#include <vector>

#include "libs/pipeline/agent_core.h"

namespace talweg::sim {

// Whether `view` has a member that whoever has `held` does not know.
bool HasJoiner(const view::View& held, const view::View& view);

// Rule 8: when a view with joiners is told to the first, no member that they are new to has a round
// open, and all of those hold the same rounds. Throws Violation otherwise.
void CheckNothingOpen(const std::vector<const pipeline::AgentCore*>& members,
                      const view::View& view);

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_JOINER_CHECKS_H_
