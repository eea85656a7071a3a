// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_COMPLETION_H_
#define TALWEG_CLIENTS_CLI_COMPLETION_H_

#include <string>
#include <vector>

#include "clients/cli/command.h"

namespace talweg::cli {

Command CompletionCommand();

// Returns the script for that shell ("bash", "zsh", "fish"), or "" for any other.
std::string CompletionScript(const std::string& shell, const std::vector<Command>& commands);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_COMPLETION_H_
