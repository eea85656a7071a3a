// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_CREDENTIALS_CREDENTIALS_H_
#define TALWEG_SERVICES_CREDENTIALS_CREDENTIALS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "libs/config/config.h"
#include "libs/rpc/credentials.h"

namespace talweg::credentials {

// Loads the credentials that the daemon's options name. Returns null for no TLS. An error names the
// file and the remedy. From here on, gRPC's own log lines go to this process's log, within bounds.
absl::StatusOr<std::shared_ptr<const rpc::Credentials>> LoadCredentials(
    const config::ProcessConfig& config);

}  // namespace talweg::credentials

#endif  // TALWEG_SERVICES_CREDENTIALS_CREDENTIALS_H_
