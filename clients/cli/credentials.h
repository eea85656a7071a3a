// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_CREDENTIALS_H_
#define TALWEG_CLIENTS_CLI_CREDENTIALS_H_

#include <absl/status/statusor.h>

#include <memory>
#include <vector>

#include "clients/cli/command.h"
#include "clients/cli/exposure.h"
#include "libs/rpc/credentials.h"

namespace talweg::cli {

// Options of the commands that ask daemons.
std::vector<CommandOption> CredentialOptions();

// What --tls-dir and --token-file say, else $TALWEG_TLS_DIR and $TALWEG_TOKEN_FILE.
OwnFiles ToolFiles(const Arguments& arguments);
// What is in them. Null: no TLS.
absl::StatusOr<std::shared_ptr<const rpc::Credentials>> ToolCredentials(const Arguments& arguments);

// talweg certs.
Command CertsCommand();

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_CREDENTIALS_H_
