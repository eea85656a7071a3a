// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_BEGIN_COMMAND_H_
#define TALWEG_CLIENTS_CLI_BEGIN_COMMAND_H_

#include "clients/cli/command.h"

namespace talweg::cli {

// `talweg begin-with`, for the launcher of hosts that come and go (clients/python/talweg/_node).
Command BeginWithCommand();

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_BEGIN_COMMAND_H_
