// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_CONFIG_READ_FILE_H_
#define TALWEG_LIBS_CONFIG_READ_FILE_H_

#include <absl/status/statusor.h>

#include <string>

namespace talweg::config {

enum class FileKind {
  kRegular,  // Another one is refused, so that reading waits for nobody.
  kAny,      // A pipe, too, as a shell's <(...): blocks until its writer has closed it.
};

// The text of a file that people write, of at most 1 MiB. Errors say that `what` could not be
// opened or read, is too large, or is of another kind; one that it could not be opened ends with
// `hint`.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, const std::string& what,
                                          const std::string& hint = "",
                                          FileKind kind = FileKind::kRegular);

}  // namespace talweg::config

#endif  // TALWEG_LIBS_CONFIG_READ_FILE_H_
