// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_SCHEDULER_QUOTAS_FILE_H_
#define TALWEG_SERVICES_SCHEDULER_QUOTAS_FILE_H_

#include <sys/stat.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/membership/quotas.h"

namespace talweg::scheduler {

// The file with rules on jobs and tenants, read whenever it has changed. Reading blocks.
class QuotasFile {
 public:
  explicit QuotasFile(std::string path) : path_(std::move(path)) {}

  // The rules, or what is wrong with the file, with its name and the line.
  absl::StatusOr<membership::Quotas> Read();
  // The same if the file is another than at the last look, else nullopt.
  std::optional<absl::StatusOr<membership::Quotas>> ReadIfChanged();

 private:
  struct Look {
    ino_t inode = 0;
    off_t size = 0;
    int64_t modified_ns = 0;
    int error_number = 0;  // It could not be looked at.

    friend bool operator==(const Look&, const Look&) = default;
  };

  Look LookAt() const;

  const std::string path_;
  Look last_;
};

}  // namespace talweg::scheduler

#endif  // TALWEG_SERVICES_SCHEDULER_QUOTAS_FILE_H_
