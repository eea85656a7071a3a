// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/run_command.h"

#include <absl/strings/str_cat.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <initializer_list>
#include <type_traits>

#include "clients/cli/guard.h"
#include "clients/cli/hosts_options.h"
#include "clients/cli/lines.h"
#include "clients/cli/own_address.h"
#include "clients/cli/process.h"
#include "clients/cli/supervisor.h"
#include "libs/base/descriptor.h"
#include "libs/config/config.h"
#include "libs/config/secret_file.h"
#include "libs/status/status.h"

namespace talweg::cli {
namespace {

// The highest node rank that agents accept.
constexpr uint64_t kNodeMax = 65535;

uint32_t CoreCount() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return 1;
  return static_cast<uint32_t>(CPU_COUNT(&cores));
}

// Returns a free port of the address; 0, with errno, if there is none.
template <typename Address>
uint16_t FreePort(Address address) {
  const Descriptor socket_fd(
      socket(reinterpret_cast<sockaddr&>(address).sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  socklen_t bytes = sizeof address;
  if (!socket_fd.valid() ||
      bind(socket_fd.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
      getsockname(socket_fd.get(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
    return 0;
  }
  if constexpr (std::is_same_v<Address, sockaddr_in>) return ntohs(address.sin_port);
  return ntohs(reinterpret_cast<sockaddr_in6&>(address).sin6_port);
}

absl::Status ReadPlace(const Arguments& arguments, RunPlan& plan) {
  const bool several = arguments.Has("scheduler") || arguments.Has("node-rank");
  if (!several) {
    const absl::Status found = FindLoopback(plan);
    if (!arguments.Has("master-addr") || !arguments.Has("master-port")) {
      TALWEG_RETURN_IF_ERROR(found);
    }
    plan.master_address = arguments.Text("master-addr", plan.master_address);
    return absl::OkStatus();
  }
  const char* const count = arguments.Has("max-nodes") ? "max-nodes" : "nodes";
  for (const char* needed : {"scheduler", "node-rank", count}) {
    if (arguments.Has(needed)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "talweg run: one machine of several needs --scheduler, --node-rank and --nodes (or "
        "--max-nodes where nodes come and go); --",
        needed, " is missing"));
  }
  plan.scheduler = arguments.Text("scheduler", "");
  // The same check as the agent's, before anything is started.
  TALWEG_RETURN_IF_ERROR(
      config::LoadAgentConfig({absl::StrCat("--scheduler=", plan.scheduler)}, {}).status());
  const uint64_t last = plan.comes_and_goes() ? kNodeMax : plan.node_count() - 1;
  TALWEG_ASSIGN_OR_RETURN(plan.node_rank, arguments.Number("node-rank", 0, 0, last));
  if (plan.comes_and_goes()) {
    if (plan.node_count() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("option --ranks-per-node: '", arguments.Text("ranks-per-node", ""), "' has ",
                       plan.node_count(), " numbers; with --max-nodes give one, this node's"));
    }
    plan.ranks_per_node.assign(*plan.node_rank + 1, plan.ranks_per_node[0]);
  }
  if (!arguments.Has("aggregators")) plan.aggregator_count = 0;  // The pool's aggregators serve.
  const std::string host = config::IsUnixAddress(plan.scheduler)
                               ? "127.0.0.1"
                               : plan.scheduler.substr(0, plan.scheduler.rfind(':'));
  if (plan.aggregator_count > 0 && !config::IsUnixAddress(plan.scheduler)) {
    TALWEG_ASSIGN_OR_RETURN(plan.own_host, OwnAddressTowards(host));
  }
  plan.master_address = arguments.Text("master-addr", host);
  plan.master_port = 29500;
  return absl::OkStatus();
}

absl::Status ReadLossPolicy(const Arguments& arguments, RunPlan& plan) {
  const bool comes_and_goes = arguments.Has("max-nodes");
  const std::string policy =
      arguments.Text("loss-policy", comes_and_goes ? "continue" : "fail_job");
  if (policy != "fail_job" && policy != "continue") {
    return absl::InvalidArgumentError(
        absl::StrCat("option --loss-policy: '", policy, "' is neither 'fail_job' nor 'continue'"));
  }
  plan.goes_on = policy == "continue";
  if (arguments.Has("min-nodes") && !plan.goes_on) {
    return absl::InvalidArgumentError(
        "option --min-nodes is for --loss-policy=continue: otherwise all nodes are needed");
  }
  if (comes_and_goes && !plan.goes_on) {
    return absl::InvalidArgumentError(
        "option --max-nodes is for --loss-policy=continue: otherwise a job has --nodes");
  }
  if (comes_and_goes && !arguments.Has("scheduler")) {
    return absl::InvalidArgumentError(
        "option --max-nodes needs hosts that come and go: give --hostfile or "
        "--host-discovery-script, or --scheduler and --node-rank for one node of such a job");
  }
  TALWEG_ASSIGN_OR_RETURN(plan.max_node_count, arguments.Number("max-nodes", 0, 1, kNodeMax + 1));
  TALWEG_ASSIGN_OR_RETURN(
      plan.min_node_count,
      arguments.Number("min-nodes", 1, 1,
                       comes_and_goes ? plan.max_node_count : plan.node_count()));
  if (comes_and_goes) {
    TALWEG_ASSIGN_OR_RETURN(plan.begin_node_count,
                            arguments.Number("nodes", 0, plan.min_node_count, plan.max_node_count));
  }
  plan.not_after_finish = comes_and_goes && arguments.Has("not-after-finish");
  // If nodes do not come and go, ranks are told the size of the whole job, which begins when it is
  // complete. If they do, the wait ends before other nodes' ranks give up, after a minute. The wait
  // is short if it is not known how many nodes come.
  constexpr uint64_t kGatherMs = 30'000;
  constexpr uint64_t kBlindGatherMs = 3'000;
  if (comes_and_goes) plan.gather_ms = plan.begin_node_count > 0 ? kGatherMs : kBlindGatherMs;
  TALWEG_ASSIGN_OR_RETURN(plan.gather_ms,
                          arguments.Number("gather-ms", plan.gather_ms, 0, 7 * 24 * 3'600'000));
  return absl::OkStatus();
}

absl::Status ReadRestarts(const Arguments& arguments, RunPlan& plan) {
  TALWEG_ASSIGN_OR_RETURN(plan.node_restarts.count_max,
                          arguments.Number("restarts", 0, 0, 1'000'000));
  TALWEG_ASSIGN_OR_RETURN(const uint64_t window_s,
                          arguments.Number("restart-window-s", 300, 1, 30 * 24 * 3'600));
  TALWEG_ASSIGN_OR_RETURN(const uint64_t pause_ms,
                          arguments.Number("restart-pause-ms", 1'000, 0, 3'600'000));
  constexpr int64_t kPauseMaxNs = 30'000'000'000;
  plan.node_restarts.window_ns = static_cast<int64_t>(window_s) * 1'000'000'000;
  plan.node_restarts.pause_min_ns = static_cast<int64_t>(pause_ms) * 1'000'000;
  plan.node_restarts.pause_max_ns = std::max(kPauseMaxNs, plan.node_restarts.pause_min_ns);
  return absl::OkStatus();
}

absl::Status ReadOutputs(const Arguments& arguments, RunPlan& plan) {
  if (arguments.Has("no-prefix")) plan.line_prefix.clear();
  plan.line_prefix = arguments.Text("line-prefix", plan.line_prefix);
  plan.output_directory = arguments.Text("output-dir", "");
  return CheckPrefix(plan.line_prefix);
}

absl::StatusOr<RunPlan> PlanOf(const Arguments& arguments) {
  RunPlan plan;
  plan.program = arguments.operands();
  if (plan.program.empty()) {
    return absl::InvalidArgumentError(
        "talweg run: no program; write it after --, as in: talweg run --nodes 2 -- python "
        "train.py");
  }
  // If nodes come and go, only this node is here.
  uint64_t nodes = 0;
  if (!arguments.Has("max-nodes")) {
    TALWEG_ASSIGN_OR_RETURN(nodes, arguments.Number("nodes", 0, 1, 1024));
  }
  TALWEG_ASSIGN_OR_RETURN(
      plan.ranks_per_node,
      ParseRanksPerNode(arguments.Text("ranks-per-node", "1"), static_cast<uint32_t>(nodes)));
  TALWEG_ASSIGN_OR_RETURN(plan.aggregator_count, arguments.Number("aggregators", 1, 1, 64));
  TALWEG_ASSIGN_OR_RETURN(plan.grace_ms, arguments.Number("grace-ms", 5'000, 0, 3'600'000));
  TALWEG_ASSIGN_OR_RETURN(plan.ready_timeout_ms,
                          arguments.Number("ready-timeout-ms", 60'000, 1, 3'600'000));
  if (arguments.Has("data-security")) {
    // The same check as the agent's, before anything is started.
    const std::string security = arguments.Text("data-security", "");
    TALWEG_RETURN_IF_ERROR(
        config::LoadAgentConfig({absl::StrCat("--data_security=", security)}, {}).status());
  }
  TALWEG_RETURN_IF_ERROR(ReadLossPolicy(arguments, plan));
  TALWEG_RETURN_IF_ERROR(ReadRestarts(arguments, plan));
  TALWEG_RETURN_IF_ERROR(ReadPlace(arguments, plan));
  TALWEG_ASSIGN_OR_RETURN(plan.master_port,
                          arguments.Number("master-port", plan.master_port, 1, 65535));
  plan.job = arguments.Text("job", "run");
  plan.trace_path = arguments.Text("trace", "");
  TALWEG_RETURN_IF_ERROR(ReadOutputs(arguments, plan));
  plan.core_count = CoreCount();
  plan.environment = config::ProcessEnvironment();
  ReadNetwork(arguments, plan);
  return plan;
}

int Supervise(const RunPlan& plan) {
  absl::StatusOr<std::unique_ptr<Supervisor>> supervisor =
      Supervisor::Make(STDOUT_FILENO, STDERR_FILENO);
  if (!supervisor.ok()) return Fail(supervisor.status());
  const LaunchResult result = Launch(plan, **supervisor).Run();
  if (!result.report.empty()) PrintError(absl::StrCat("run: ", result.report));
  return result.exit_status;
}

int RunJob(const Arguments& arguments) {
  if (ComesWithHosts(arguments)) return RunOnHosts(arguments);
  absl::StatusOr<RunPlan> plan = PlanOf(arguments);
  if (!plan.ok()) return Fail(plan.status());
  if (const absl::Status status = FindDaemons(*plan); !status.ok()) return Fail(status);
  const absl::StatusOr<int> exit_status = RunGuarded([&plan](const std::string& directory) {
    if (const absl::Status used = UseDirectory(directory, *plan); !used.ok()) return Fail(used);
    return Supervise(*plan);
  });
  return exit_status.ok() ? *exit_status : Fail(exit_status.status());
}

}  // namespace

absl::Status FindLoopback(RunPlan& plan) {
  sockaddr_in ipv4 = {.sin_family = AF_INET};
  ipv4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (const uint16_t port = FreePort(ipv4); port != 0) {
    plan.master_address = plan.loopback_host = "127.0.0.1";
    plan.master_port = port;
    return absl::OkStatus();
  }
  const int error_number = errno;
  sockaddr_in6 ipv6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  if (const uint16_t port = FreePort(ipv6); port != 0) {
    plan.master_address = "::1";
    plan.loopback_host = "[::1]";
    plan.master_port = port;
    return absl::OkStatus();
  }
  return status::ErrnoStatus(
      error_number,
      "find a free port of 127.0.0.1 or ::1 (is this machine's loopback up: ip link set lo up; or "
      "give --master-addr and --master-port)");
}

absl::Status FindDaemons(RunPlan& plan) {
  TALWEG_ASSIGN_OR_RETURN(plan.agent_file, FindDaemon("talweg-agent"));
  if (plan.starts_scheduler()) {
    TALWEG_ASSIGN_OR_RETURN(plan.scheduler_file, FindDaemon("talweg-scheduler"));
  }
  if (plan.starts_aggregators()) {
    TALWEG_ASSIGN_OR_RETURN(plan.aggregator_file, FindDaemon("talweg-aggregator"));
  }
  return absl::OkStatus();
}

void ReadNetwork(const Arguments& arguments, RunPlan& plan) {
  const auto told = [&plan](const char* name) {
    const auto variable = plan.environment.find(name);
    return variable == plan.environment.end() ? std::string() : variable->second;
  };
  const auto is_one_of = [](const std::string& text, std::initializer_list<const char*> words) {
    return std::find(words.begin(), words.end(), text) != words.end();
  };
  plan.provider = arguments.Text("provider", "tcp");
  plan.data_security = arguments.Text("data-security", "");
  plan.open_data_port = plan.provider == "tcp" && is_one_of(plan.data_security, {"", "none"}) &&
                        is_one_of(told("TALWEG_DATA_SECURITY"), {"", "none"}) &&
                        told("TALWEG_DATA_TRANSPORT") != "tcp";
  const bool forced = is_one_of(told("TALWEG_FORCE_DISTRIBUTED"), {"1", "true", "yes", "on"});
  plan.force_distributed = forced || arguments.Has("force-distributed");
  // Others have opened the ports of a given scheduler's pool, and a standalone node needs none.
  if (!plan.scheduler.empty() || plan.standalone()) return;
  if (arguments.Has("force-distributed")) {
    plan.network_reason = "--force-distributed";
  } else if (forced) {
    plan.network_reason = "TALWEG_FORCE_DISTRIBUTED";
  } else if (arguments.Has("provider")) {
    plan.network_reason = "--provider";
  } else if (arguments.Has("data-security")) {
    plan.network_reason = "--data-security";
  } else if (is_one_of(told("TALWEG_LOCAL_TRANSPORT"), {"0", "false", "no", "off"})) {
    plan.network_reason = "TALWEG_LOCAL_TRANSPORT";
  }
}

absl::Status UseDirectory(const std::string& directory, RunPlan& plan) {
  plan.directory = directory;
  if (!plan.starts_scheduler()) return absl::OkStatus();
  plan.secret_file = absl::StrCat(directory, "/secret");
  const absl::Status made = config::MakeSecretFile(plan.secret_file);
  if (made.ok()) return made;
  return absl::Status(made.code(), absl::StrCat(made.message(), " (make room there, or let ",
                                                "TMPDIR name another directory)"));
}

Command RunCommand() {
  Command command;
  command.name = "run";
  command.summary = "Runs a program as ranks, with the daemons that they need";
  command.usage = "[OPTIONS] -- PROGRAM [ARGUMENTS]";
  command.details =
      "Starts scheduler, aggregators and agents on this machine, then the program once for each\n"
      "rank, and ends everything afterwards. One node needs its agent alone. Each line of output\n"
      "gets its rank in front.\n\n"
      "A rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and\n"
      "TALWEG_AGENT_SOCKET in its environment, and OMP_NUM_THREADS, unless that is set already. "
      "By\n"
      "TALWEG_SCHEDULER, TALWEG_RUN_AGENTS and TALWEG_RUN_DAEMONS, the daemons' addresses and\n"
      "processes, it may call talweg status. Daemons take further options from the environment:\n"
      "TALWEG_CREDIT_BYTES=...\n\n"
      "When a rank fails, all others are ended. The exit status is that rank's, or 128 + signal "
      "if\n"
      "a signal killed it. With --loss-policy=continue only the ranks of its node are ended: the\n"
      "other nodes go on, and the exit status is 0 when they end well. With --restarts=N what has\n"
      "failed is started again: a node, or its agent alone if its ranks wait for another one\n"
      "(State.run of talweg.State). TALWEG_RUN_RESTARTS tells a rank how often its node was "
      "started\n"
      "again. A scheduler that ends is always started again. So is an agent whose ranks have left\n"
      "their job, when one of them looks for an agent.\n\n"
      "On one machine no port is opened. Daemons meet on Unix sockets in a directory that is this\n"
      "user's alone, and gradients go through shared memory.\n\n"
      "Hosts that come and go: --hostfile or --host-discovery-script says which there are. Each\n"
      "gets a node, here or by ssh, and the job goes on while there are enough of them.\n\n"
      "One machine of several: with --scheduler, --nodes and --node-rank only this node's agent\n"
      "and ranks are started. Scheduler and aggregators run elsewhere.\n\n"
      "  talweg run --nodes 2 --ranks-per-node 2 -- python train.py\n"
      "  talweg run --scheduler 10.0.0.1:7447 --nodes 2 --node-rank 1 -- python train.py\n"
      "  talweg run --hostfile hosts --min-nodes 2 --max-nodes 8 -- python train.py";
  command.operands = Operands::kProgram;
  command.options = {
      {"nodes", "N",
       "Number of nodes, each with an agent of its own. Default: 1. Where nodes come and go: how\n"
       "many the job begins with."},
      {"ranks-per-node", "N[,N...]",
       "Ranks on each node, one number for all or one a node. Default: 1."},
      {"aggregators", "N",
       "Number of aggregators. Default: 1; with --scheduler 0, and more serve all nodes, at the\n"
       "address by which this machine reaches the scheduler."},
      {"job", "NAME", "The job's name. Default: run."},
      {"provider", "NAME", "libfabric provider between agents and aggregators. Default: tcp."},
      {"data-security", "none|keyed|tls",
       "What is done to the bytes between agents and aggregators: nothing, authenticated, or\n"
       "authenticated and encrypted. keyed and tls use Talweg's own TCP. Default: none."},
      {"loss-policy", "fail_job|continue",
       "What becomes of the other nodes when a rank or an agent fails: they are ended, or go on.\n"
       "Default: fail_job."},
      {"restarts", "N",
       "How often within a window a node is started again when one of its ranks or its agent "
       "fails.\n"
       "With --loss-policy=fail_job all nodes are started again, as a new job. Default: 0."},
      {"restart-window-s", "S", "The length of that window. Default: 300."},
      {"restart-pause-ms", "MS",
       "The pause before the first of those starts; each further one waits twice as long, at most\n"
       "30 s. Default: 1000."},
      {"min-nodes", "N",
       "With --loss-policy=continue: the fewest nodes with which the job goes on. Default: 1."},
      {"max-nodes", "N",
       "Where nodes come and go: the largest number at a time. Ranks get no RANK and no\n"
       "WORLD_SIZE."},
      {"gather-ms", "MS",
       "With --loss-policy=continue: how long a job that has --min-nodes waits for all others, or\n"
       "for --nodes where nodes come and go, before it begins. Default: 600000; where nodes come\n"
       "and go 30000, and without --nodes 3000."},
      {"force-distributed", "",
       "Starts scheduler and aggregators also for one node, has all daemons open TCP ports of\n"
       "127.0.0.1 (or ::1), and says which. So do $TALWEG_FORCE_DISTRIBUTED=1, --provider, "
       "--data-security\n"
       "and $TALWEG_LOCAL_TRANSPORT=false."},
      {"scheduler", "ADDRESS",
       "Join a job of this scheduler (HOST:PORT, or unix:/PATH on its machine), as one node of\n"
       "several."},
      {"node-rank", "K", "Which node this is, from 0; with --scheduler."},
      {"not-after-finish", "",
       "With --max-nodes: if the newest job of that name has finished, this node comes too late. "
       "It\n"
       "ends with an error, and does not begin another job."},
      {"master-addr", "HOST",
       "MASTER_ADDR of the ranks. Default: 127.0.0.1, or ::1 where that is all there is; with\n"
       "--scheduler, the scheduler's host."},
      {"master-port", "PORT",
       "MASTER_PORT of the ranks. Default: a free one; with --scheduler, 29500."},
      {"trace", "FILE",
       "Timeline of the first rounds, for Perfetto; with more nodes than one, FILE.<node>."},
      {"no-prefix", "", "Leaves out the rank at the beginning of each line of output."},
      {"line-prefix", "FORMAT",
       "What each line begins with: %r is the rank, %s stdout or stderr, %t the time, %% a %.\n"
       "Default: '[%r] '."},
      {"output-dir", "DIR",
       "Keeps what each rank writes in DIR/rank.N/stdout and DIR/rank.N/stderr, too, on its host.\n"
       "A rank that is started again appends to them."},
      {"grace-ms", "MS",
       "How long ranks and daemons have between SIGTERM and SIGKILL. Default: 5000."},
      {"ready-timeout-ms", "MS", "How long daemons may take until they serve. Default: 60000."},
  };
  const std::vector<CommandOption> on_hosts = HostsOptions();
  command.options.insert(command.options.end(), on_hosts.begin(), on_hosts.end());
  command.run = RunJob;
  return command;
}

}  // namespace talweg::cli
