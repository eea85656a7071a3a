// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_RUN_COMMAND_H_
#define TALWEG_CLIENTS_CLI_RUN_COMMAND_H_

#include <absl/status/statusor.h>

#include <string>

#include "clients/cli/command.h"
#include "clients/cli/launch.h"
#include "clients/cli/plan.h"

namespace talweg::cli {

Command RunCommand();

// A TCP port of the loopback that was free just now.
absl::StatusOr<uint16_t> FreePort();

// Finds the daemons that the plan needs.
absl::Status FindDaemons(RunPlan& plan);

// Reads the provider, and of a run on one machine whether it has all daemons and why they open
// ports.
void ReadNetwork(const Arguments& arguments, RunPlan& plan);

// Gives the run its directory, and a job secret of its own there if it has a scheduler of its own.
absl::Status UseDirectory(const std::string& directory, RunPlan& plan);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_RUN_COMMAND_H_
