// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_STATUS_H_
#define TALWEG_CLIENTS_CLI_STATUS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "proto/talweg/agent/v1/agent.pb.h"
#include "proto/talweg/aggregator/v1/aggregator.pb.h"
#include "proto/talweg/scheduler/v1/admin.pb.h"

namespace talweg::cli {

// The answer of an agent or aggregator, or why there is none.
template <typename Response>
struct Answer {
  std::string address;
  Response response;
  std::string error;  // Empty: it has answered.
};

struct AgentAnswer : Answer<agent::v1::GetStatusResponse> {
  uint64_t job_id = 0;
  uint32_t node_rank = 0;
};

// All facts that `talweg status` shows, read at one time.
struct StatusFacts {
  std::string scheduler_address;
  scheduler::v1::GetSchedulerResponse scheduler;
  std::vector<scheduler::v1::GetJobResponse> jobs;
  scheduler::v1::ListJobsResponse listed;  // The joins that wait for room, and what tenants use.
  std::vector<scheduler::v1::AggregatorStatus> pool;
  std::map<std::string, Answer<aggregator::v1::GetStatusResponse>> aggregators;  // By name.
  std::vector<AgentAnswer> agents;  // The agents of the jobs above.
};

// A round that somebody waits for, from the answers of all daemons that know it.
struct WaitingRound {
  std::string tensor;
  uint64_t round = 0;
  std::set<uint32_t> ranks;  // Those that have not pushed it.
  // Those that have not contributed to it, if no rank of theirs is known to be the cause.
  std::set<uint32_t> nodes;
  std::set<std::string> reasons;  // Other ones: "credit at its owners", ...
  double waited_s = 0;

  // "rank 3, node 1".
  std::string For() const;
};

// Returns the job's waiting rounds, the longest wait first.
std::vector<WaitingRound> WaitingRounds(const StatusFacts& facts,
                                        const scheduler::v1::GetJobResponse& job);

std::string StatusText(const StatusFacts& facts);
std::string StatusJson(const StatusFacts& facts);

// Shows a single agent, such as a standalone one.
std::string AgentText(const std::string& address, const agent::v1::GetStatusResponse& agent);
std::string AgentJson(const agent::v1::GetStatusResponse& agent);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_STATUS_H_
