// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_HOSTS_OPTIONS_H_
#define TALWEG_CLIENTS_CLI_HOSTS_OPTIONS_H_

#include <vector>

#include "clients/cli/command.h"

namespace talweg::cli {

// `talweg run` on hosts that come and go: its options are checked here, and carried out by the
// Python package (clients/python/talweg/_node/hosts_run.py), which reaches hosts by ssh as all
// launchers of Talweg do.

// The options that `talweg run` has for that alone.
std::vector<CommandOption> HostsOptions();

// Whether it is told where its hosts stand.
bool ComesWithHosts(const Arguments& arguments);

// Blocks until everything has ended; returns the exit status.
int RunOnHosts(const Arguments& arguments);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_HOSTS_OPTIONS_H_
