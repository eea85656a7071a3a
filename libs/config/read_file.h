// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_CONFIG_READ_FILE_H_
#define TALWEG_LIBS_CONFIG_READ_FILE_H_

#include <absl/status/statusor.h>

#include <string>

namespace talweg::config {

enum class FileKind {
  kRegular,  // Other kinds are refused, so that reading never waits.
  kAny,      // Also a pipe, such as a shell's <(...): blocks until its writer has closed it.
};

// Returns the text of a file that people write, of at most 1 MiB. Errors say that `what` cannot be
// opened or read, is too large, or is of another kind. If it cannot be opened, the error ends with
// `hint`.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, const std::string& what,
                                          const std::string& hint = "",
                                          FileKind kind = FileKind::kRegular);

}  // namespace talweg::config

#endif  // TALWEG_LIBS_CONFIG_READ_FILE_H_
