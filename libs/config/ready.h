// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_CONFIG_READY_H_
#define TALWEG_LIBS_CONFIG_READY_H_

#include <absl/status/status.h>

#include <map>
#include <string>

#include "libs/config/config.h"

namespace talweg::config {

// Says that the daemon serves. Writes {"pid":12,"addresses":{"admin":"127.0.0.1:4711"}} and a line
// feed to --ready_fd, which it closes, and to --ready_file, which appears whole. main() calls it
// once, when every address is bound. Names used: scheduler "listen"; aggregator "data", "admin";
// agent "socket", "admin".
absl::Status AnnounceReady(const ProcessConfig& config,
                           const std::map<std::string, std::string>& addresses);

// Returns `listen` with its host replaced by the address of that network interface (IPv4 if it has
// one); `listen` itself if the name is empty, or if `listen` is a Unix socket. NOT_FOUND names the
// existing interfaces.
absl::StatusOr<ListenAddress> OnInterface(const ListenAddress& listen,
                                          const std::string& interface_name);

}  // namespace talweg::config

#endif  // TALWEG_LIBS_CONFIG_READY_H_
