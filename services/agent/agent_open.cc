// SPDX-License-Identifier: Apache-2.0
#include "services/agent/agent_open.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "libs/base/descriptor.h"
#include "libs/status/status.h"
#include "libs/telemetry/log.h"
#include "libs/transport/composite/composite_transport.h"
#include "libs/transport/local/local_transport.h"
#include "libs/transport/network/network.h"

namespace talweg::agent {
namespace {

transport::NetworkOptions NetworkOf(const config::AgentConfig& config) {
  return {.data_security = config.data_security,
          .data_transport = config.data_transport,
          .fabric = {.provider = config.provider,
                     .source_interface = config.interface,
                     .silence_ns = static_cast<int64_t>(config.silence_ms) * 1'000'000}};
}

}  // namespace

std::string SettingProblem(const config::AgentConfig& config, const view::View& view) {
  if (config::IsUnixAddress(config.scheduler)) return "";
  const std::string ours = transport::SettingText(NetworkOf(config));
  for (const view::ViewAggregator& aggregator : view.aggregators) {
    const std::string theirs = transport::SettingText(aggregator.data_address);
    if (theirs.empty() || theirs == ours) continue;
    return "node " + std::to_string(config.node_rank) + " runs with " + ours +
           ", and aggregator '" + aggregator.name + "' with " + theirs +
           "; give all daemons the same --data_security and --data_transport";
  }
  return "";
}

EncodingRule EncodingRuleOf(const config::AgentConfig& config) {
  return {.encoding = config.standalone ? Encoding::kPlain : config.encoding,
          .bytes_min = config.encoding_bytes_min};
}

absl::StatusOr<std::unique_ptr<transport::Transport>> MakeTransport(
    const config::AgentConfig& config, transport::FabricOptions::Devices devices,
    const runtime::Clock* clock, telemetry::CounterSet* counters) {
  transport::NetworkOptions network_options = NetworkOf(config);
  const int64_t silence_ns = network_options.fabric.silence_ns;
  network_options.fabric.devices = devices;
  std::unique_ptr<transport::LocalTransport> local;
  if (config.local_transport) {
    TALWEG_ASSIGN_OR_RETURN(
        local, transport::NewLocalTransport({.silence_ns = silence_ns}, clock, counters));
  }
  if (config::IsUnixAddress(config.scheduler)) return local;
  TALWEG_ASSIGN_OR_RETURN(std::unique_ptr<transport::Transport> network,
                          transport::NewNetworkTransport(network_options, clock, counters));
  // The aggregators warn of what libfabric's tcp lacks: nobody connects to an agent.
  if (config.provider != "tcp") {
    const std::string warning = transport::NetworkWarning(network_options);
    if (!warning.empty()) telemetry::Log(telemetry::LogLevel::kWarning, warning);
  }
  if (local == nullptr) return network;
  return transport::NewCompositeTransport(std::move(network), std::move(local));
}

absl::StatusOr<gid_t> GroupId(const std::string& name) {
  std::vector<char> buffer(16 * 1024);
  group entry;
  group* found = nullptr;
  const int error = getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found != nullptr) return entry.gr_gid;
  if (error != 0) return status::ErrnoStatus(error, "socket_group '" + name + "'");
  return absl::NotFoundError("socket_group '" + name +
                             "': there is no such group; name one that `getent group` lists");
}

absl::Status MakeSocketDirectory(const std::string& socket_path) {
  const size_t slash = socket_path.rfind('/');
  if (slash == std::string::npos || slash == 0) return absl::OkStatus();
  const std::string directory = socket_path.substr(0, slash);
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return status::ErrnoStatus(errno, "mkdir " + directory + " for the ranks' socket");
  }
  struct stat status;
  if (lstat(directory.c_str(), &status) != 0)
    return status::ErrnoStatus(errno, "stat " + directory);
  if (!S_ISDIR(status.st_mode)) {
    // Follows a link that this user made, but no other user's.
    if (!S_ISLNK(status.st_mode) || status.st_uid != geteuid() ||
        stat(directory.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
      return absl::FailedPreconditionError(directory +
                                           " is not a directory; choose another "
                                           "--socket_path");
    }
  }
  const bool open_to_others = (status.st_mode & (S_IWGRP | S_IWOTH)) != 0;
  const bool protected_entries = (status.st_mode & S_ISVTX) != 0;
  if (status.st_uid != geteuid() && status.st_uid != 0) {
    return absl::PermissionDeniedError(directory + " belongs to user " +
                                       std::to_string(status.st_uid) +
                                       "; choose another --socket_path");
  }
  if (open_to_others && !protected_entries) {
    return absl::PermissionDeniedError("others may write to " + directory +
                                       "; take that away (chmod go-w), or choose another "
                                       "--socket_path");
  }
  return absl::OkStatus();
}

std::string PartialPath(const std::string& trace_path) { return trace_path + ".partial"; }

absl::Status CheckTracePath(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  const std::string what = "option --trace_path: '" + path + "'";
  struct stat status;
  if (stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    return absl::FailedPreconditionError(what + " is a directory; name a file");
  }
  const std::string partial = PartialPath(path);
  const Descriptor file(open(partial.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!file.valid()) return status::ErrnoStatus(errno, what + " cannot be written");
  unlink(partial.c_str());
  return absl::OkStatus();
}

}  // namespace talweg::agent
