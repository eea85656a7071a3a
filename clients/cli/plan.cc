// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/plan.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <numeric>

#include "clients/cli/command.h"
#include "clients/cli/lines.h"
#include "libs/status/status.h"

namespace talweg::cli {
namespace {

ChildSpec DaemonSpec(const RunPlan& plan, const std::string& name, const std::string& file,
                     std::vector<std::string> args) {
  ChildSpec spec;
  spec.name = name;
  spec.args = {file};
  // Users need not know of a run's daemons, so these log only warnings and errors.
  if (plan.environment.count("TALWEG_LOG_LEVEL") == 0) args.push_back("--log_level=warning");
  if (!plan.secret_file.empty()) args.push_back(absl::StrCat("--secret_file=", plan.secret_file));
  spec.args.insert(spec.args.end(), args.begin(), args.end());
  spec.environment = plan.environment;
  spec.is_daemon = true;
  return spec;
}

// Returns the option with the place where a daemon of a run on one machine listens.
std::string Where(const RunPlan& plan, const std::string& option, const std::string& socket) {
  if (!plan.network_reason.empty()) {
    return absl::StrCat("--", option, "=", plan.loopback_host, ":0");
  }
  return absl::StrCat("--", option, "=unix:", plan.directory, "/", socket);
}

// Returns whether the environment names the agent's admin address. If not, no other machine asks
// the agent, and it needs no port.
bool SaysWhereAdminIs(const std::map<std::string, std::string>& environment) {
  for (const char* name : {"TALWEG_ADMIN_LISTEN", "TALWEG_INTERFACE", "TALWEG_CONFIG"}) {
    if (environment.count(name) > 0) return true;
  }
  return false;
}

// Returns the number with leading zeros, so that the names of all ranks sort by number.
std::string Padded(const RunPlan& plan, const std::string& number) {
  const size_t digits = absl::StrCat(plan.world_size() - 1).size();
  if (plan.comes_and_goes() || number.size() >= digits) return number;
  return absl::StrCat(std::string(digits - number.size(), '0'), number);
}

}  // namespace

uint32_t RunPlan::world_size() const {
  return std::accumulate(ranks_per_node.begin(), ranks_per_node.end(), uint32_t{0});
}

uint32_t RunPlan::RankBase(uint32_t node) const {
  return std::accumulate(ranks_per_node.begin(), ranks_per_node.begin() + node, uint32_t{0});
}

std::vector<uint32_t> RunPlan::LocalNodes() const {
  if (node_rank) return {*node_rank};
  std::vector<uint32_t> nodes(node_count());
  std::iota(nodes.begin(), nodes.end(), 0);
  return nodes;
}

bool RunPlan::standalone() const {
  return node_count() == 1 && scheduler.empty() && !force_distributed;
}

absl::StatusOr<std::vector<uint32_t>> ParseRanksPerNode(const std::string& text, uint32_t nodes) {
  TALWEG_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers,
                          ParseNumbers("option --ranks-per-node", text, 1, 1024));
  std::vector<uint32_t> counts(numbers.begin(), numbers.end());
  if (counts.size() == 1) counts.resize(std::max<uint32_t>(nodes, 1), counts[0]);
  if (nodes != 0 && counts.size() != nodes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "option --ranks-per-node: '", text, "' has ", counts.size(), " numbers, but --nodes is ",
        nodes, "; give one number for all, or one a node"));
  }
  return counts;
}

ChildSpec SchedulerSpec(const RunPlan& plan, const std::string& address) {
  return DaemonSpec(plan, "talweg-scheduler", plan.scheduler_file,
                    {address.empty() ? Where(plan, "listen", kSchedulerSocket)
                                     : absl::StrCat("--listen=", address),
                     absl::StrCat("--store_path=", plan.directory, "/scheduler.db")});
}

ChildSpec AggregatorSpec(const RunPlan& plan, uint32_t index, const std::string& scheduler) {
  const std::string name = absl::StrCat("aggregator-", index);
  const bool serves_others = !plan.own_host.empty();
  std::vector<std::string> args = {absl::StrCat("--scheduler=", scheduler),
                                   plan.node_rank
                                       ? absl::StrCat("--name=node-", *plan.node_rank, "-", index)
                                       : absl::StrCat("--name=", index),
                                   absl::StrCat("--provider=", plan.provider),
                                   serves_others ? absl::StrCat("--listen=", plan.own_host, ":0")
                                                 : Where(plan, "listen", name + ".sock")};
  if (!serves_others || !SaysWhereAdminIs(plan.environment)) {
    args.push_back(Where(plan, "admin_listen", name + "-admin.sock"));
  }
  if (!plan.data_security.empty()) {
    args.push_back(absl::StrCat("--data_security=", plan.data_security));
  }
  return DaemonSpec(plan, absl::StrCat("talweg-aggregator ", index), plan.aggregator_file,
                    std::move(args));
}

ChildSpec AgentSpec(const RunPlan& plan, uint32_t node, const std::string& scheduler,
                    bool have_begun) {
  std::vector<std::string> args = {
      absl::StrCat("--job=", plan.job),
      absl::StrCat("--node_rank=", node),
      absl::StrCat("--rank_count=", plan.ranks_per_node[node]),
      absl::StrCat("--min_members=", plan.goes_on ? plan.min_node_count : plan.node_count()),
      absl::StrCat("--max_members=",
                   plan.comes_and_goes() ? plan.max_node_count : plan.node_count()),
      absl::StrCat("--socket_path=", SocketPath(plan, node)),
  };
  if (plan.standalone()) {
    args.push_back("--standalone");
  } else {
    args.push_back(absl::StrCat("--scheduler=", scheduler));
    args.push_back(absl::StrCat("--provider=", plan.provider));
    if (!plan.data_security.empty()) {
      args.push_back(absl::StrCat("--data_security=", plan.data_security));
    }
    if (plan.goes_on) args.push_back("--loss_policy=continue");
    if (plan.goes_on) args.push_back(absl::StrCat("--gather_ms=", plan.gather_ms));
    if (plan.begin_node_count > 0) {
      args.push_back(absl::StrCat("--begin_members=", plan.begin_node_count));
    }
    if (plan.not_after_finish && !have_begun) args.push_back("--not_after_finish");
  }
  if (plan.scheduler.empty() || !SaysWhereAdminIs(plan.environment)) {
    args.push_back(Where(plan, "admin_listen", absl::StrCat("agent-", node, "-admin.sock")));
  }
  if (!plan.trace_path.empty()) {
    args.push_back(absl::StrCat(
        "--trace_path=", plan.trace_path,
        plan.node_count() > 1 || plan.comes_and_goes() ? absl::StrCat(".", node) : ""));
  }
  return DaemonSpec(plan, absl::StrCat("talweg-agent of node ", node), plan.agent_file,
                    std::move(args));
}

ChildSpec RankSpec(const RunPlan& plan, uint32_t node, uint32_t local_rank) {
  const uint32_t rank = plan.RankBase(node) + local_rank;
  ChildSpec spec;
  // If nodes come and go, ranks' numbers change: talweg.rank() has them.
  const std::string number =
      plan.comes_and_goes() ? absl::StrCat(node, ".", local_rank) : absl::StrCat(rank);
  spec.name = absl::StrCat("rank ", number);
  spec.args = plan.program;
  spec.environment = plan.environment;
  spec.prefix = FillPrefix(plan.line_prefix, "%r", number);
  if (!plan.output_directory.empty()) {
    spec.output_directory = absl::StrCat(plan.output_directory, "/rank.", Padded(plan, number));
  }
  auto& variables = spec.environment;
  if (plan.comes_and_goes()) {
    for (const char* name : {"RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE"}) variables.erase(name);
  } else {
    variables["RANK"] = number;
    variables["WORLD_SIZE"] = absl::StrCat(plan.world_size());
    variables["GROUP_WORLD_SIZE"] = absl::StrCat(plan.node_count());
  }
  variables["LOCAL_RANK"] = absl::StrCat(local_rank);
  variables["LOCAL_WORLD_SIZE"] = absl::StrCat(plan.ranks_per_node[node]);
  variables["GROUP_RANK"] = absl::StrCat(node);
  variables["MASTER_ADDR"] = plan.master_address;
  variables["MASTER_PORT"] = absl::StrCat(plan.master_port);
  variables["TALWEG_AGENT_SOCKET"] = SocketPath(plan, node);
  variables["TALWEG_RUN_OUTLIVES"] = OutlivesPath(plan, node, local_rank);
  variables["TALWEG_RUN_NEEDS"] = NeedsPath(plan, node, local_rank);
  variables["TALWEG_RUN_FAILS"] = FailsPath(plan, node, local_rank);
  variables["TALWEG_LOCAL_RANK"] = absl::StrCat(local_rank);
  variables["TALWEG_JOB"] = plan.job;
  // Without this, every rank would start a thread for each core of the machine.
  uint32_t ranks_here = 0;
  for (const uint32_t each : plan.LocalNodes()) ranks_here += plan.ranks_per_node[each];
  variables.emplace("OMP_NUM_THREADS", absl::StrCat(std::max(1u, plan.core_count / ranks_here)));
  // Lines appear when they are written, not when a block is full.
  variables.emplace("PYTHONUNBUFFERED", "1");
  return spec;
}

std::string SocketPath(const RunPlan& plan, uint32_t node) {
  return absl::StrCat(plan.directory, "/", node, ".sock");
}

std::string OutlivesPath(const RunPlan& plan, uint32_t node, uint32_t local_rank) {
  return absl::StrCat(plan.directory, "/", node, ".", local_rank, ".outlives");
}

std::string NeedsPath(const RunPlan& plan, uint32_t node, uint32_t local_rank) {
  return absl::StrCat(plan.directory, "/", node, ".", local_rank, ".needs");
}

std::string FailsPath(const RunPlan& plan, uint32_t node, uint32_t local_rank) {
  return absl::StrCat(plan.directory, "/", node, ".", local_rank, ".fails");
}

absl::StatusOr<std::string> ReadyAddress(const std::string& line, const std::string& name) {
  // The line comes from AnnounceReady, so this need not be a full JSON parser: only a socket's path
  // could need unescaping, and that is known here.
  const std::string key = absl::StrCat("\"", name, "\":\"");
  const size_t begin = line.find(key);
  const size_t end = begin == std::string::npos ? begin : line.find('"', begin + key.size());
  if (end == std::string::npos) {
    return absl::NotFoundError(absl::StrCat("no address '", name, "' in its ready line: ", line));
  }
  return line.substr(begin + key.size(), end - begin - key.size());
}

}  // namespace talweg::cli
