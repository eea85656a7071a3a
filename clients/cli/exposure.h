// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_EXPOSURE_H_
#define TALWEG_CLIENTS_CLI_EXPOSURE_H_

#include "clients/cli/command.h"
#include "clients/cli/doctor.h"

namespace talweg::cli {

// What on this machine may let strangers in: certificates, the secret file, daemons without TLS.
// Reads files and /proc.
ExposureFacts ReadExposure(const Arguments& arguments);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_EXPOSURE_H_
