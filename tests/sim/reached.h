// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_REACHED_H_
#define TALWEG_TESTS_SIM_REACHED_H_

#include <cstdint>
#include <map>
#include <string>

#include "libs/aggregation/aggregator_core.h"
#include "tests/sim/agent_process.h"
#include "tests/sim/ledger.h"

namespace talweg::sim {

// Add the points of coverage.h that a life has reached, and how often, as far as its views and the
// cores' counters show that at its end.
void GatherLedger(const Ledger& ledger, std::map<std::string, uint64_t>& coverage);
void GatherJob(const aggregation::Counters& counters, std::map<std::string, uint64_t>& coverage);
void GatherAgent(const AgentProcess& process, std::map<std::string, uint64_t>& coverage);

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_REACHED_H_
