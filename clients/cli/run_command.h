// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_RUN_COMMAND_H_
#define TALWEG_CLIENTS_CLI_RUN_COMMAND_H_

#include <absl/status/status.h>

#include <string>

#include "clients/cli/command.h"
#include "clients/cli/launch.h"
#include "clients/cli/plan.h"

namespace talweg::cli {

Command RunCommand();

// Sets the address of loopback, and as MASTER_PORT a TCP port of it that was free a moment ago.
absl::Status FindLoopback(RunPlan& plan);

// Finds the daemons that the plan needs.
absl::Status FindDaemons(RunPlan& plan);

// Reads the provider and, for a run on one machine, whether it has all daemons and why they open
// ports.
void ReadNetwork(const Arguments& arguments, RunPlan& plan);

// Sets the run's directory. If the run starts a scheduler, makes a job secret there.
absl::Status UseDirectory(const std::string& directory, RunPlan& plan);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_RUN_COMMAND_H_
