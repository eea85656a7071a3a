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

// The plan of a `talweg run`.
struct RunPlan {
  std::vector<uint32_t> ranks_per_node;  // By node, for all nodes of the job.
  uint32_t aggregator_count = 1;
  std::string job = "run";
  std::string provider = "tcp";
  std::string data_security;  // The daemons' option; empty: they use their other settings.
  // The daemons carry data over libfabric's tcp, which is open to anybody who reaches its port.
  bool open_data_port = false;
  bool force_distributed = false;
  // Why daemons on one machine open TCP ports ("--force-distributed"); empty: they open none.
  std::string network_reason;
  std::string loopback_host = "127.0.0.1";  // Where those ports are; or "[::1]".
  // The loss policy. False: a node that fails ends the run. True: the others go on while
  // `min_node_count` are left.
  bool goes_on = false;
  uint32_t min_node_count = 1;
  // If not 0, nodes come and go, and there are at most so many. Then `ranks_per_node` has only the
  // nodes up to this machine's, all with equal numbers. 0: it has all nodes of the job.
  uint32_t max_node_count = 0;
  // The job begins at once with so many of these; 0: not set.
  uint32_t begin_node_count = 0;
  // A node of this machine's begins no job after one that has finished. It comes too late then.
  bool not_after_finish = false;
  // How long a job that has `min_node_count` nodes waits for `begin_node_count`.
  uint64_t gather_ms = 600'000;
  RestartPolicy node_restarts;  // For a node whose ranks or agent fail.
  // For a scheduler, and for an aggregator where the run can go on without it.
  RestartPolicy daemon_restarts = {.count_max = 10,
                                   .window_ns = 60'000'000'000,
                                   .pause_min_ns = 50'000'000,
                                   .pause_max_ns = 2'000'000'000};
  // For one machine of several: the job's scheduler, and this machine's node.
  std::string scheduler;  // Empty: all nodes are on this machine.
  std::string own_host;   // This machine's address for the others.
  std::optional<uint32_t> node_rank;
  std::string master_address = "127.0.0.1";
  uint16_t master_port = 0;
  std::string trace_path;             // Empty: none.
  std::string line_prefix = "[%r] ";  // A format (lines.h).
  // Each rank's output is also written to a directory rank.N in this one; empty: it is not.
  std::string output_directory;
  uint64_t grace_ms = 5'000;
  uint64_t ready_timeout_ms = 60'000;
  uint32_t core_count = 1;  // This machine's.
  std::vector<std::string> program;
  // The daemons' executables; empty if not needed.
  std::string scheduler_file;
  std::string aggregator_file;
  std::string agent_file;
  std::string directory;    // Private to this run, for the sockets.
  std::string secret_file;  // Has the job secret; empty: the daemons use the user's own.
  std::map<std::string, std::string> environment;  // The caller's.

  uint32_t node_count() const { return static_cast<uint32_t>(ranks_per_node.size()); }
  uint32_t world_size() const;
  // Returns how many ranks the nodes before this one have.
  uint32_t RankBase(uint32_t node) const;
  // Returns the nodes that run on this machine.
  std::vector<uint32_t> LocalNodes() const;
  // Returns whether the job has one node, served only by its agent.
  bool standalone() const;
  bool starts_scheduler() const { return scheduler.empty() && !standalone(); }
  bool starts_aggregators() const { return aggregator_count > 0 && !standalone(); }
  bool comes_and_goes() const { return max_node_count > 0; }
};

// Parses "2" for three nodes to {2, 2, 2}. "2,1" must have one number per node. `nodes` 0: as many
// nodes as numbers.
absl::StatusOr<std::vector<uint32_t>> ParseRanksPerNode(const std::string& text, uint32_t nodes);

// `address` is that of the scheduler that this one replaces; empty: the first one.
ChildSpec SchedulerSpec(const RunPlan& plan, const std::string& address);
ChildSpec AggregatorSpec(const RunPlan& plan, uint32_t index, const std::string& scheduler);
// `have_begun`: the node's ranks have been in the job, so they may begin another one.
ChildSpec AgentSpec(const RunPlan& plan, uint32_t node, const std::string& scheduler,
                    bool have_begun);
ChildSpec RankSpec(const RunPlan& plan, uint32_t node, uint32_t local_rank);

// The socket of a run's scheduler, which `talweg status` looks for.
inline constexpr char kSchedulerSocket[] = "scheduler.sock";

// Returns the socket at which a node's agent listens for ranks.
std::string SocketPath(const RunPlan& plan, uint32_t node);

// A file that exists while the rank would wait for another agent if its own failed. It is empty
// until the rank has been in the job.
std::string OutlivesPath(const RunPlan& plan, uint32_t node, uint32_t local_rank);

// A file that exists while a rank looks for an agent.
std::string NeedsPath(const RunPlan& plan, uint32_t node, uint32_t local_rank);

// A file that exists when a rank's program has ended, and the rank is about to. Its time says since
// when. It holds the exit status, if the rank knows that this is not 0.
std::string FailsPath(const RunPlan& plan, uint32_t node, uint32_t local_rank);

// Returns the address of that name in a daemon's ready line (libs/config/ready.h). NOT_FOUND shows
// the line.
absl::StatusOr<std::string> ReadyAddress(const std::string& line, const std::string& name);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_PLAN_H_
