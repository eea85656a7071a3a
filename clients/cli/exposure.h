// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_EXPOSURE_H_
#define TALWEG_CLIENTS_CLI_EXPOSURE_H_

#include <string>

#include "clients/cli/doctor.h"
#include "libs/config/config.h"

namespace talweg::cli {

// The credentials of this user's tools.
struct OwnFiles {
  std::string tls_directory;  // Empty: none is named. The same for token_file.
  std::string token_file;
};

// Finds what may let strangers in on this machine: certificates, keys and secrets of this user and
// of running daemons, and daemons without TLS. Reads files, and `proc` as FindDaemons does.
ExposureFacts ReadExposure(const OwnFiles& own, const config::Environment& environment,
                           const std::string& proc = "/proc");

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_EXPOSURE_H_
