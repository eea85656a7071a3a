// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_PLAN_H_
#define TALWEG_CLIENTS_CLI_PLAN_H_

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "clients/cli/process.h"
#include "clients/cli/restarts.h"

namespace talweg::cli {

// What `talweg run` was asked for.
struct RunPlan {
  std::vector<uint32_t> ranks_per_node;  // By node; all nodes of the job.
  uint32_t aggregator_count = 1;
  std::string job = "run";
  std::string provider = "tcp";
  std::string data_security;  // The daemons' option; empty: what they are told otherwise.
  // The daemons carry data over libfabric's tcp, which is open to whoever reaches its port.
  bool open_data_port = false;
  bool force_distributed = false;
  // Why daemons on one machine open TCP ports ("--force-distributed"); empty: they open none.
  std::string network_reason;
  // With which loss policy: a node that fails ends the run, or the others go on while
  // `min_node_count` are left.
  bool goes_on = false;
  uint32_t min_node_count = 1;
  // Nodes come and go, and there are at most so many; 0: all nodes of the job are in
  // `ranks_per_node`. Otherwise those up to this one are, which has them all alike.
  uint32_t max_node_count = 0;
  // With how many of these the job begins at once; 0: nobody has said.
  uint32_t begin_node_count = 0;
  // How long a job that has `min_node_count` waits for as many as it begins with.
  uint64_t gather_ms = 600'000;
  RestartPolicy node_restarts;  // For a node whose ranks or agent fail.
  // For a scheduler, and for an aggregator where the run can go on without it.
  RestartPolicy daemon_restarts = {.count_max = 10,
                                   .window_ns = 60'000'000'000,
                                   .pause_min_ns = 50'000'000,
                                   .pause_max_ns = 2'000'000'000};
  // One machine of several: the job's scheduler, and which node this is.
  std::string scheduler;  // Empty: every node is here.
  std::string own_host;   // This machine's address for the others.
  std::optional<uint32_t> node_rank;
  std::string master_address = "127.0.0.1";
  uint16_t master_port = 0;
  std::string trace_path;             // Empty: none.
  std::string line_prefix = "[%r] ";  // A format (lines.h).
  // Has a directory rank.N for what each rank writes, beside our own outputs; empty: none.
  std::string output_directory;
  uint64_t grace_ms = 5'000;
  uint64_t ready_timeout_ms = 60'000;
  uint32_t core_count = 1;  // This machine's.
  std::vector<std::string> program;
  // Files of the daemons; those that are not needed may be empty.
  std::string scheduler_file;
  std::string aggregator_file;
  std::string agent_file;
  std::string directory;    // Private, for the sockets; of this run alone.
  std::string secret_file;  // Has the job secret; empty: the daemons find the user's own.
  std::map<std::string, std::string> environment;  // The caller's.

  uint32_t node_count() const { return static_cast<uint32_t>(ranks_per_node.size()); }
  uint32_t world_size() const;
  // Ranks on the nodes before this one.
  uint32_t RankBase(uint32_t node) const;
  // The nodes that run on this machine.
  std::vector<uint32_t> LocalNodes() const;
  // One node, served by its agent alone.
  bool standalone() const;
  bool starts_scheduler() const { return scheduler.empty() && !standalone(); }
  bool starts_aggregators() const { return aggregator_count > 0 && !standalone(); }
  bool comes_and_goes() const { return max_node_count > 0; }
};

// "2" and three nodes: {2, 2, 2}. "2,1" must have as many numbers as there are nodes (0: as there
// are numbers).
absl::StatusOr<std::vector<uint32_t>> ParseRanksPerNode(const std::string& text, uint32_t nodes);

// `address` is that of an earlier one, which this one takes the place of; empty: there was none.
ChildSpec SchedulerSpec(const RunPlan& plan, const std::string& address);
ChildSpec AggregatorSpec(const RunPlan& plan, uint32_t index, const std::string& scheduler);
ChildSpec AgentSpec(const RunPlan& plan, uint32_t node, const std::string& scheduler);
ChildSpec RankSpec(const RunPlan& plan, uint32_t node, uint32_t local_rank);

// Says that the scheduler of a run listens there, for talweg status to find.
inline constexpr char kSchedulerSocket[] = "scheduler.sock";

// Where the agent of a node listens for its ranks.
std::string SocketPath(const RunPlan& plan, uint32_t node);

// A file that is there while a rank waits for another agent if its own fails.
std::string OutlivesPath(const RunPlan& plan, uint32_t node, uint32_t local_rank);

// A file that is there while a rank looks for an agent.
std::string NeedsPath(const RunPlan& plan, uint32_t node, uint32_t local_rank);

// A file that is there when a rank is about to end by an error of its program, since when.
std::string FailsPath(const RunPlan& plan, uint32_t node, uint32_t local_rank);

// The address of that name in a daemon's ready line (libs/config/ready.h); NOT_FOUND shows the
// line.
absl::StatusOr<std::string> ReadyAddress(const std::string& line, const std::string& name);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_PLAN_H_
