// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_VERSION_H_
#define TALWEG_LIBS_RPC_VERSION_H_

#include <cstdint>
#include <string>

#include "libs/base/release.h"

namespace talweg::rpc {

// A process's version of the control plane's protocol. Processes of different `major` refuse each
// other.
struct Version {
  uint32_t major = 2;
  uint32_t minor = 0;
  std::string build = kRelease;

  friend bool operator==(const Version&, const Version&) = default;
};

// "1.0 (build 0.1.0)"
std::string VersionText(const Version& version);

// Returns "" if `ours` and `theirs` work together, else a text that names both, for the process
// `who`.
std::string VersionProblem(const Version& ours, const Version& theirs, const std::string& who);

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_VERSION_H_
