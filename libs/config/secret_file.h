// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_CONFIG_SECRET_FILE_H_
#define TALWEG_LIBS_CONFIG_SECRET_FILE_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>

#include "libs/config/config.h"

// The job secret: agents and aggregators show it when they join and register, and the scheduler
// lets in nobody who shows another. It lies in a file that its user alone may read. Processes hand
// each other the file's path, never what is in it.
namespace talweg::config {

// $XDG_CONFIG_HOME/talweg/secret, else ~/.config/talweg/secret; "" when neither variable is set.
std::string DefaultSecretPath(const Environment& environment);

// What the file of --secret_file holds, or the default one if there is one; "" without either.
// NOT_FOUND: the file of --secret_file is not there. PERMISSION_DENIED: others may read the file;
// names it, its mode or owner, and the remedy.
absl::StatusOr<std::string> LoadSecret(const ProcessConfig& config, const Environment& environment);

// For one file, as above.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path);

// The bearer tokens that a daemon accepts, as texts for libs/rpc.
struct AcceptedTokens {
  std::string table;  // What tokens_file holds.
  std::string keys;   // What token_keys_file holds; it is public.
};
// "" for files that are not named. Errors as ReadSecretFile.
absl::StatusOr<AcceptedTokens> LoadAcceptedTokens(const ProcessConfig& config);

// Draws a secret and writes it to a new file of mode 0600; makes missing directories, of mode 0700.
// ALREADY_EXISTS: there is such a file, which stays as it is.
absl::Status MakeSecretFile(const std::string& path);

}  // namespace talweg::config

#endif  // TALWEG_LIBS_CONFIG_SECRET_FILE_H_
