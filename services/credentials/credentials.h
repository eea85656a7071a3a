// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_CREDENTIALS_CREDENTIALS_H_
#define TALWEG_SERVICES_CREDENTIALS_CREDENTIALS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "libs/config/config.h"
#include "libs/rpc/credentials.h"
#include "libs/rpc/identity.h"

namespace talweg::credentials {

// Loads the credentials that the daemon's options name. Returns null for no TLS. An error names the
// file and the remedy. INVALID_ARGUMENT if the certificate is of another role than `role`, as no
// client would take the daemon for what it is. From here on, gRPC's own log lines go to this
// process's log, within bounds.
absl::StatusOr<std::shared_ptr<const rpc::Credentials>> LoadCredentials(
    const config::ProcessConfig& config, rpc::Role role);

}  // namespace talweg::credentials

#endif  // TALWEG_SERVICES_CREDENTIALS_CREDENTIALS_H_
