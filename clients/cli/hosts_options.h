// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_HOSTS_OPTIONS_H_
#define TALWEG_CLIENTS_CLI_HOSTS_OPTIONS_H_

#include <vector>

#include "clients/cli/command.h"

namespace talweg::cli {

// `talweg run` on hosts that come and go. This file checks its options. The Python package
// (clients/python/talweg/_node/hosts_run.py) carries them out; it reaches hosts by ssh, like all
// launchers of Talweg.

// The options of `talweg run` that are only for such hosts.
std::vector<CommandOption> HostsOptions();

// Returns whether the arguments name hosts that come and go.
bool ComesWithHosts(const Arguments& arguments);

// Blocks until everything has ended. Returns the exit status.
int RunOnHosts(const Arguments& arguments);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_HOSTS_OPTIONS_H_
