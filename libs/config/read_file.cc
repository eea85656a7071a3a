// SPDX-License-Identifier: Apache-2.0
#include "libs/config/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "libs/base/descriptor.h"
#include "libs/base/read_at_most.h"
#include "libs/status/status.h"

namespace talweg::config {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, const std::string& what,
                                          const std::string& hint, FileKind kind) {
  // A pipe opens at once, whether or not a process writes to it.
  const int wait = kind == FileKind::kRegular ? O_NONBLOCK : 0;
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | wait));
  if (!file.valid()) return status::ErrnoStatus(errno, "open " + what + hint);
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return status::ErrnoStatus(errno, "stat " + what);
  if (kind == FileKind::kRegular && !S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(what + " is not a regular file; put its text into one");
  }
  std::string text;
  if (!ReadAtMost(file.get(), kFileBytesMax + 1, text)) {
    return status::ErrnoStatus(errno, "read " + what);
  }
  if (text.size() <= kFileBytesMax) return text;
  return absl::InvalidArgumentError(what + " is larger than 1 MiB");
}

}  // namespace talweg::config
