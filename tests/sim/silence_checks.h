// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_SILENCE_CHECKS_H_
#define TALWEG_TESTS_SIM_SILENCE_CHECKS_H_

#include <cstdint>
#include <map>

#include "libs/base/ids.h"
#include "libs/view/view.h"
#include "tests/sim/agent_process.h"

// Checks invariant 5 while the scheduler is down (docs/protocol.md, section 8). Throws Violation.
namespace talweg::sim {

// When each agent ended.
using Deaths = std::map<view::MemberIdentity, int64_t>;

// Checks that `agent` does not wait for a member that has long been dead while the scheduler has
// been down since `undecided_since_ns`, or up for too short a time to declare it lost.
void CheckWaitsForNoneDead(const AgentProcess& agent, const Deaths& deaths,
                           int64_t undecided_since_ns, int64_t unreachable_ns, int64_t now_ns);

// `by` has given up `other`. Checks that `other` was not connected at `said_ns`, when the message
// was sent: it may have been on its way for long.
void CheckWasAbsent(const AgentProcess& by, const AgentProcess& other, int64_t said_ns);

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_SILENCE_CHECKS_H_
