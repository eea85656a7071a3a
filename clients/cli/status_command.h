// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_STATUS_COMMAND_H_
#define TALWEG_CLIENTS_CLI_STATUS_COMMAND_H_

#include "clients/cli/command.h"

namespace talweg::cli {

Command StatusCommand();

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_STATUS_COMMAND_H_
