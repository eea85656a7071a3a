// SPDX-License-Identifier: Apache-2.0
#include "services/scheduler/quotas_file.h"

#include <errno.h>

#include <utility>
#include <variant>

#include "libs/config/read_file.h"
#include "libs/status/status.h"

namespace talweg::scheduler {

QuotasFile::Look QuotasFile::LookAt() const {
  struct stat found {};
  if (stat(path_.c_str(), &found) != 0) return {.error_number = errno};
  return {.inode = found.st_ino,
          .size = found.st_size,
          .modified_ns = int64_t{found.st_mtim.tv_sec} * 1'000'000'000 + found.st_mtim.tv_nsec};
}

absl::StatusOr<membership::Quotas> QuotasFile::Read() {
  const std::string what = "the quotas file " + path_;
  last_ = LookAt();
  if (last_.error_number != 0) return status::ErrnoStatus(last_.error_number, "read " + what);
  TALWEG_ASSIGN_OR_RETURN(const std::string text, config::ReadSmallFile(path_, what));
  auto parsed = membership::Quotas::Parse(text);
  if (const auto* problem = std::get_if<std::string>(&parsed)) {
    return absl::InvalidArgumentError(what + ": " + *problem);
  }
  return std::get<membership::Quotas>(std::move(parsed));
}

std::optional<absl::StatusOr<membership::Quotas>> QuotasFile::ReadIfChanged() {
  if (LookAt() == last_) return std::nullopt;
  return Read();
}

}  // namespace talweg::scheduler
