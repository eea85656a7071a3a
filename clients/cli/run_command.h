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

// Returns a TCP port of loopback that was free a moment ago.
absl::StatusOr<uint16_t> FreePort();

// Finds the daemons that the plan needs.
absl::Status FindDaemons(RunPlan& plan);

// Reads the provider and, for a run on one machine, whether it has all daemons and why they open
// ports.
void ReadNetwork(const Arguments& arguments, RunPlan& plan);

// Sets the run's directory. If the run starts a scheduler, makes a job secret there.
absl::Status UseDirectory(const std::string& directory, RunPlan& plan);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_RUN_COMMAND_H_
