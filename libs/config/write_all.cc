// SPDX-License-Identifier: Apache-2.0
#include "libs/config/write_all.h"

#include <absl/strings/str_cat.h>
#include <unistd.h>

#include <cerrno>

#include "libs/status/status.h"

namespace talweg::config {

absl::Status WriteAll(int descriptor, std::string_view text, const std::string& what) {
  while (!text.empty()) {
    const ssize_t bytes = write(descriptor, text.data(), text.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return status::ErrnoStatus(errno, absl::StrCat("write ", what));
    text.remove_prefix(static_cast<size_t>(bytes));
  }
  return absl::OkStatus();
}

}  // namespace talweg::config
