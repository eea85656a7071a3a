// SPDX-License-Identifier: Apache-2.0
#include <absl/strings/str_cat.h>
#include <unistd.h>

#include <string>

#include "libs/config/config.h"

namespace talweg::config {
namespace {

std::string Find(const Environment& environment, const std::string& name) {
  const auto variable = environment.find(name);
  return variable == environment.end() ? "" : variable->second;
}

}  // namespace

absl::StatusOr<std::string> DefaultStorePath(const Environment& environment) {
  constexpr char kTail[] = "/talweg/scheduler.sqlite";
  const std::string state_home = Find(environment, "XDG_STATE_HOME");
  if (!state_home.empty()) return absl::StrCat(state_home, kTail);
  const std::string home = Find(environment, "HOME");
  if (!home.empty()) return absl::StrCat(home, "/.local/state", kTail);
  return absl::FailedPreconditionError(
      "no place for the scheduler's store: neither XDG_STATE_HOME nor HOME is set; give "
      "--store_path=FILE or --in_memory");
}

std::string DefaultSocketPath(const AgentConfig& config, const Environment& environment) {
  std::string job;
  // A Unix socket's path has 107 bytes. Two long names with the same beginning would collide; the
  // agent reports that as a socket in use.
  for (const char c : config.job.substr(0, 40)) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_';
    job += plain ? c : '_';
  }
  const std::string runtime_dir = Find(environment, "XDG_RUNTIME_DIR");
  const std::string directory = runtime_dir.empty() ? absl::StrCat("/tmp/talweg-", getuid())
                                                    : absl::StrCat(runtime_dir, "/talweg");
  return absl::StrCat(directory, "/", job, "-", config.node_rank, ".sock");
}

}  // namespace talweg::config
