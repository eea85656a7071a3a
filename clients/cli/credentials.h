// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_CREDENTIALS_H_
#define TALWEG_CLIENTS_CLI_CREDENTIALS_H_

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "clients/cli/command.h"
#include "clients/cli/exposure.h"
#include "libs/rpc/credentials.h"

namespace talweg::cli {

// Returns the option, else the environment's variable, else "".
std::string OptionOrVariable(const Arguments& arguments, const std::string& option,
                             const char* variable);

// The options of commands that call daemons.
std::vector<CommandOption> CredentialOptions();

// Returns the files of --tls-dir and --token-file, else of $TALWEG_TLS_DIR and $TALWEG_TOKEN_FILE.
OwnFiles ToolFiles(const Arguments& arguments);
// Loads these files. Returns null for no TLS.
absl::StatusOr<std::shared_ptr<const rpc::Credentials>> ToolCredentials(const Arguments& arguments);

// `talweg certs`.
Command CertsCommand();

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_CREDENTIALS_H_
