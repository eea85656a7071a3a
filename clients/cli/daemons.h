// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_DAEMONS_H_
#define TALWEG_CLIENTS_CLI_DAEMONS_H_

#include <absl/status/status.h>

#include <string>
#include <vector>

#include "libs/config/config.h"

namespace talweg::cli {

// A daemon of this machine that runs, and what it was told, as far as this user may look.
struct RunningDaemon {
  std::string name;     // "talweg-agent (process 7)"
  absl::Status status;  // Why what it was told is not known, or OK.
  // Its options, by the parser that it uses itself. Without its environment where that may not be
  // read.
  config::ProcessConfig config;
  bool environment_known = false;
  std::string default_secret_file;  // That it takes where no option names one. Empty: none.
  std::string process;              // Its directory in /proc.

  // What the daemon calls `path`: for people, and where this process finds it.
  std::string Shown(const std::string& path) const;
  std::string Find(const std::string& path) const;
};

// Reads `proc`, which is /proc, or what a test has in its place.
std::vector<RunningDaemon> FindDaemons(const std::string& proc);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_DAEMONS_H_
