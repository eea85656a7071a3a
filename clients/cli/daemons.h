// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_DAEMONS_H_
#define TALWEG_CLIENTS_CLI_DAEMONS_H_

#include <absl/status/status.h>

#include <string>
#include <vector>

#include "libs/config/config.h"

namespace talweg::cli {

// A running daemon of this machine, and its options, as far as this user may read them.
struct RunningDaemon {
  std::string name;     // "talweg-agent (process 7)"
  absl::Status status;  // OK, or why its options are not known.
  // Its options, from the daemon's own parser. Without its environment if this user may not read
  // that.
  config::ProcessConfig config;
  bool environment_known = false;
  // The secret file that it uses if no option names one. Empty: none.
  std::string default_secret_file;
  std::string process;  // Its directory in /proc.

  // `path` is a path as the daemon sees it. Shown returns it for messages, Find as this process can
  // open it.
  std::string Shown(const std::string& path) const;
  std::string Find(const std::string& path) const;
};

// Reads `proc`, which is /proc, or a test's substitute.
std::vector<RunningDaemon> FindDaemons(const std::string& proc);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_DAEMONS_H_
