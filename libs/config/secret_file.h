// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_CONFIG_SECRET_FILE_H_
#define TALWEG_LIBS_CONFIG_SECRET_FILE_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>

#include "libs/config/config.h"

// The job secret: agents, aggregators and the scheduler prove to each other that they know it, and
// refuse a process that does not. It lies in a file that only its user may read. Processes pass the
// file's path to each other, never its content.
namespace talweg::config {

// $XDG_CONFIG_HOME/talweg/secret, else ~/.config/talweg/secret; "" if neither variable is set.
std::string DefaultSecretPath(const Environment& environment);

// Returns the content of the file of --secret_file; else of the default file, if it exists; else
// "". NOT_FOUND: the file of --secret_file does not exist. PERMISSION_DENIED: others may read the
// file; the error names it, its mode or owner, and the remedy.
absl::StatusOr<std::string> LoadSecret(const ProcessConfig& config, const Environment& environment);

// The same for one file.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path);

// The bearer tokens that a daemon accepts, as texts for libs/rpc.
struct AcceptedTokens {
  std::string table;  // The content of tokens_file.
  std::string keys;   // The content of token_keys_file; it is public.
};
// "" for files that are not named. Errors as in ReadSecretFile.
absl::StatusOr<AcceptedTokens> LoadAcceptedTokens(const ProcessConfig& config);

// Draws a secret and writes it to a new file of mode 0600; makes missing directories, of mode 0700.
// ALREADY_EXISTS: the file exists, and stays as it is.
absl::Status MakeSecretFile(const std::string& path);

}  // namespace talweg::config

#endif  // TALWEG_LIBS_CONFIG_SECRET_FILE_H_
