// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_OWN_ADDRESS_H_
#define TALWEG_CLIENTS_CLI_OWN_ADDRESS_H_

#include <absl/status/statusor.h>

#include <string>

namespace talweg::cli {

// Returns the address of this machine from which packets to `host` leave, as daemons' options take
// it: IPv6 in brackets. `host` may have brackets, too. UNAVAILABLE: the host has no address, or
// none that can be reached. Resolves names, but sends nothing else.
absl::StatusOr<std::string> OwnAddressTowards(const std::string& host);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_OWN_ADDRESS_H_
