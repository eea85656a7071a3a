// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_JOINER_CHECKS_H_
#define TALWEG_TESTS_SIM_JOINER_CHECKS_H_

#include <vector>

#include "libs/pipeline/agent_core.h"

namespace talweg::sim {

// Returns whether `view` has a member that `held` does not have.
bool HasJoiner(const view::View& held, const view::View& view);

// Rule 8: when the first member gets a view with joiners, no member to which they are new has a
// round open, and all such members hold the same rounds. Throws Violation otherwise.
void CheckNothingOpen(const std::vector<const pipeline::AgentCore*>& members,
                      const view::View& view);

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_JOINER_CHECKS_H_
