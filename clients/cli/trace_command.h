// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_TRACE_COMMAND_H_
#define TALWEG_CLIENTS_CLI_TRACE_COMMAND_H_

#include "clients/cli/command.h"

namespace talweg::cli {

// `talweg trace`: a timeline of a running agent.
Command TraceCommand();

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_TRACE_COMMAND_H_
