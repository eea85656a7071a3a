// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_OWN_ADDRESS_H_
#define TALWEG_CLIENTS_CLI_OWN_ADDRESS_H_

#include <absl/status/statusor.h>

#include <string>

namespace talweg::cli {

// The address of this machine that packets to `host` come from, as daemons' options have it: IPv6
// in brackets, as `host` may be. UNAVAILABLE when the host has no address, or none that is reached.
// Resolves names; sends nothing else.
absl::StatusOr<std::string> OwnAddressTowards(const std::string& host);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_OWN_ADDRESS_H_
