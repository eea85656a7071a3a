// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_EXPOSURE_H_
#define TALWEG_CLIENTS_CLI_EXPOSURE_H_

#include <string>

#include "clients/cli/doctor.h"
#include "libs/config/config.h"

namespace talweg::cli {

// What this user's tools are given.
struct OwnFiles {
  std::string tls_directory;  // Empty: none was named. The next likewise.
  std::string token_file;
};

// What on this machine may let strangers in: certificates, keys and secrets, of this user and of
// the daemons that run, and daemons without TLS. Reads files, and `proc` as FindDaemons does.
ExposureFacts ReadExposure(const OwnFiles& own, const config::Environment& environment,
                           const std::string& proc = "/proc");

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_EXPOSURE_H_
