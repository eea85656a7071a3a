// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_CONFIG_READ_FILE_H_
#define TALWEG_LIBS_CONFIG_READ_FILE_H_

#include <absl/status/statusor.h>

#include <string>

namespace talweg::config {

// The text of a file that people write, of at most 1 MiB. Errors say that `what` could not be
// opened or read, or is too large; one that it could not be opened ends with `hint`.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, const std::string& what,
                                          const std::string& hint = "");

}  // namespace talweg::config

#endif  // TALWEG_LIBS_CONFIG_READ_FILE_H_
