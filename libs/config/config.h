// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_CONFIG_CONFIG_H_
#define TALWEG_LIBS_CONFIG_CONFIG_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "libs/base/bytes.h"
#include "libs/base/dealing.h"
#include "libs/base/encoding.h"

// The options of the daemons. A value on the command line wins over one in the environment
// (TALWEG_<OPTION>), that one over one in the text-format file named by --config, and that one over
// the default. The defaults below are the only ones; libs/config/options.cc says everything else
// about an option, once.
namespace talweg::config {

// Where to bind: "127.0.0.1:7447", "[::1]:7447", "node-3:7000-7010" (the first free port of a
// range), ":0" after a host for any free port, "unix:/run/talweg/scheduler.sock".
struct ListenAddress {
  std::string host;
  uint16_t port_first = 0;
  uint16_t port_last = 0;  // Equal to port_first unless it is a range; both 0: any free port.
  std::string path = {};   // A Unix socket's path, instead of host and ports; or empty.

  std::string ToString() const;
  friend bool operator==(const ListenAddress&, const ListenAddress&) = default;
};

enum class LossPolicy : uint8_t { kFailJob, kContinue };

// Options of every daemon.
struct ProcessConfig {
  std::string config;              // The file that was read; empty: none.
  std::string log_level = "info";  // One that ParseLogLevel of libs/telemetry knows.
  // Where the daemon writes one JSON line, {"pid": ..., "addresses": {...}}, when it serves; see
  // ready.h.
  int32_t ready_fd = -1;   // -1: nowhere.
  std::string ready_file;  // Empty: nowhere.
  // How long an idle thread polls before it sleeps. -1: chosen from the number of cores.
  int32_t spin_us = -1;
  // How long SIGTERM may take before the daemon ends anyway.
  uint64_t drain_timeout_ms = 5'000;
  // See secret_file.h. Empty: the user's own, if there is one. "none": there is no secret.
  std::string secret_file;
  // Directory with ca.crt, tls.crt and tls.key of this process's gRPC connections. Empty: no TLS.
  std::string tls_dir;
  bool insecure = false;  // Serves gRPC on a network without TLS.
  // Bearer tokens: the one that this process shows, and those that it accepts. Empty: none.
  std::string token_file;
  std::string tokens_file;
  std::string token_keys_file;
  std::string token_audience;
  // How much one peer may call at a gRPC port (docs/quotas.md, "Calls"). 0: without limit.
  uint32_t peer_calls_per_second_max = 200;
  uint32_t peer_calls_open_max = 256;

  friend bool operator==(const ProcessConfig&, const ProcessConfig&) = default;
};

struct SchedulerConfig : ProcessConfig {
  ListenAddress listen{"127.0.0.1", 7447, 7447};
  std::string
      interface;  // Bind to this network interface's address instead of listen's host; or empty.
  std::string advertise;   // Host that others are told to connect to; empty: the bound one.
  std::string store_path;  // Empty: DefaultStorePath(). Unused with in_memory.
  bool in_memory = false;
  uint64_t lease_ms = 10'000;
  std::string quotas_file;            // Rules on jobs and tenants; empty: none.
  std::string data_security = "any";  // "none", "keyed", "tls": what all daemons must have.

  friend bool operator==(const SchedulerConfig&, const SchedulerConfig&) = default;
};

struct AggregatorConfig : ProcessConfig {
  std::string scheduler = "127.0.0.1:7447";
  std::string name;  // Empty: the host's name. Stable over restarts: placement depends on it.
  uint32_t weight = 1;
  uint32_t lanes = 1;          // Aggregators in this process, each with a data thread of its own.
  std::vector<uint32_t> cpus;  // Lane k's data thread runs on the k-th; empty: any.
  ListenAddress listen{"127.0.0.1", 0, 0};  // Data plane.
  std::string interface;                    // As SchedulerConfig.
  std::string advertise;                    // Host that agents connect to; empty: the bound one.
  std::string provider = "tcp";             // libfabric's name of it.
  std::string data_security = "none";       // "none", "keyed", "tls".
  std::string data_transport = "auto";      // "auto", "libfabric", "tcp".
  bool local_transport = true;              // Shared memory with agents on the same host.
  ListenAddress admin_listen{"127.0.0.1", 0, 0};
  uint64_t memory_bytes_max = 0;  // For all jobs' slots and results; 0: half of MemoryLimitBytes().
  uint64_t credit_bytes = 8 * kMiB;
  bool results_by_priority = false;
  uint64_t renew_ms = 0;                // As AgentConfig.
  uint64_t silence_ms = 20'000;         // As AgentConfig.
  uint32_t peer_connections_max = 256;  // One member's, or one address's; 0: any number.

  friend bool operator==(const AggregatorConfig&, const AggregatorConfig&) = default;
};

struct AgentConfig : ProcessConfig {
  std::string scheduler = "127.0.0.1:7447";
  std::string job = "default";
  std::string tenant;  // The job's tenant; empty: unsaid.
  uint32_t node_rank = 0;
  std::string name;         // For people; empty: the host's name.
  uint32_t rank_count = 1;  // Ranks of the job on this node.
  uint32_t min_members = 1;
  uint32_t max_members = 1;
  uint32_t begin_members = 0;     // 0: max_members.
  bool not_after_finish = false;  // Begins no job if the newest of that name has finished.
  LossPolicy loss_policy = LossPolicy::kFailJob;
  uint64_t slice_bytes_max = kMiB;
  Dealing dealing;                       // How slices are dealt to aggregators.
  Encoding encoding = Encoding::kPlain;  // How large sums and averages of f32 travel.
  uint64_t encoding_bytes_min = 64 * kKiB;
  uint64_t credit_bytes = 8 * kMiB;  // Upper bound on what aggregators grant.
  std::string socket_path;           // Empty: DefaultSocketPath().
  uint32_t socket_mode = 0600;
  std::string socket_group;  // Group that owns the socket; empty: the process's own.
  std::string
      interface;  // As SchedulerConfig; for admin_listen and the data plane's source address.
  std::string advertise;                // Host that others connect to; empty: the bound one.
  std::string provider = "tcp";         // libfabric's name of it.
  std::string data_security = "none";   // As AggregatorConfig.
  std::string data_transport = "auto";  // As AggregatorConfig.
  bool local_transport = true;          // Shared memory with aggregators on the same host.
  ListenAddress admin_listen{"127.0.0.1", 0, 0};
  bool standalone = false;       // One node: no scheduler, no aggregator.
  uint64_t arena_bytes_max = 0;  // All segments of all ranks; 0: half of MemoryLimitBytes().
  uint64_t join_timeout_ms = 600'000;
  uint64_t gather_ms = 30'000;   // From min_members to the job's beginning without begin_members.
  uint64_t silence_ms = 20'000;  // A data connection that is silent this long is broken; 0: never.
  uint64_t unreachable_ms = 30'000;  // The job ends if steps wait this long for a peer; 0: never.
  uint64_t renew_ms = 0;             // Between two renewals of the lease; 0: a fifth of the lease.
  uint64_t stall_ms = 0;  // A round that waits this long for a rank ends the job; 0: never.
  uint64_t stall_notice_ms = 1000;  // After this time people are told about such a round; 0: never.
  std::string trace_path;           // Empty: no trace.
  uint32_t trace_rounds = 16;
  uint64_t trace_bytes_max = 64 * kMiB;  // For a timeline that SetTrace asks for; 0: none.
  std::string gpu = "auto";              // "off": ranks' tensors on GPUs go through host memory.
  std::string gpu_direct = "auto";       // "off": NICs reach no GPU's memory.
  std::string test_fake_gpus;  // Tests only: DIRECTORY:COUNT of gpu::fake::NewSharedPlatform.

  friend bool operator==(const AgentConfig&, const AgentConfig&) = default;
};

// Whether this is "unix:/...", a socket: its server is on this machine.
bool IsUnixAddress(const std::string& address);

// Names to values; TALWEG_* are read.
using Environment = std::map<std::string, std::string>;
Environment ProcessEnvironment();

// Where this process finds what another process calls `path`. Empty function: at the same path.
using FileFinder = std::function<std::string(const std::string& path)>;

// `args` follow the program's name. INVALID_ARGUMENT names the option, where it was given, its
// value, what is allowed and what to do; for an unknown option, also the nearest known one. Reads
// the file named by --config, blocking. `find` is for a caller that asks what another process was
// told, and must not wait for it: that file has to be a regular one. The caller handles `--help`:
// see HelpWanted.
absl::StatusOr<SchedulerConfig> LoadSchedulerConfig(const std::vector<std::string>& args,
                                                    const Environment& environment,
                                                    const FileFinder& find = {});
absl::StatusOr<AggregatorConfig> LoadAggregatorConfig(const std::vector<std::string>& args,
                                                      const Environment& environment,
                                                      const FileFinder& find = {});
absl::StatusOr<AgentConfig> LoadAgentConfig(const std::vector<std::string>& args,
                                            const Environment& environment,
                                            const FileFinder& find = {});

// For main(): as Load..., but prints help if it is asked for (and ends the process with 0), or what
// is wrong (and ends it with 2).
SchedulerConfig SchedulerConfigOrExit(int argc, char** argv);
AggregatorConfig AggregatorConfigOrExit(int argc, char** argv);
AgentConfig AgentConfigOrExit(int argc, char** argv);

// Whether --help or -h is among `args`.
bool HelpWanted(const std::vector<std::string>& args);
std::string SchedulerHelp();
std::string AggregatorHelp();
std::string AgentHelp();

// The flags' names, without dashes, for shell completion.
std::vector<std::string> SchedulerOptionNames();
std::vector<std::string> AggregatorOptionNames();
std::vector<std::string> AgentOptionNames();

// The text of docs/configuration.md.
std::string ConfigurationPage();

// $XDG_STATE_HOME/talweg/scheduler.sqlite, else ~/.local/state/talweg/scheduler.sqlite;
// FAILED_PRECONDITION if neither variable is set. Makes no directory.
absl::StatusOr<std::string> DefaultStorePath(const Environment& environment);
// $XDG_RUNTIME_DIR/talweg/<job>-<node rank>.sock, else /tmp/talweg-<uid>/<job>-<node rank>.sock.
// Bytes of the job's name that cannot be in a file name become '_'. Makes no directory.
std::string DefaultSocketPath(const AgentConfig& config, const Environment& environment);

}  // namespace talweg::config

#endif  // TALWEG_LIBS_CONFIG_CONFIG_H_
