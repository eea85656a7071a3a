// SPDX-License-Identifier: Apache-2.0
#include "libs/config/read_file.h"

#include <errno.h>

#include <algorithm>
#include <fstream>

#include "libs/status/status.h"

namespace talweg::config {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, const std::string& what,
                                          const std::string& hint) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return status::ErrnoStatus(errno, "open " + what + hint);
  std::string text(kFileBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  if (file.bad() || (file.fail() && !file.eof())) return status::ErrnoStatus(errno, "read " + what);
  if (text.size() > kFileBytesMax)
    return absl::InvalidArgumentError(what + " is larger than 1 MiB");
  return text;
}

}  // namespace talweg::config
