// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_SILENCE_CHECKS_H_
#define TALWEG_TESTS_SIM_SILENCE_CHECKS_H_

#include <cstdint>
#include <map>

#include "libs/base/ids.h"
#include "libs/view/view.h"
#include "tests/sim/agent_process.h"

// Invariant 5 while the scheduler is down (docs/protocol.md, section 8). What is false is a
// Violation.
namespace talweg::sim {

// When each agent ended.
using Deaths = std::map<view::MemberIdentity, int64_t>;

// `agent` does not wait for a member that has been dead for long, while the scheduler has been
// down, or up for too short to say so, since `undecided_since_ns`.
void CheckWaitsForNoneDead(const AgentProcess& agent, const Deaths& deaths,
                           int64_t undecided_since_ns, int64_t unreachable_ns, int64_t now_ns);

// `by` has given up `other`, which was not connected when that was said, at `said_ns`: what was
// said may have been on its way for long.
void CheckWasAbsent(const AgentProcess& by, const AgentProcess& other, int64_t said_ns);

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_SILENCE_CHECKS_H_
