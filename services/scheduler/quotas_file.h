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

// The file with rules on jobs and tenants. Both calls block while they read.
class QuotasFile {
 public:
  explicit QuotasFile(std::string path) : path_(std::move(path)) {}

  // Returns the rules. An error names the file, the line and the problem.
  absl::StatusOr<membership::Quotas> Read();
  // The same if the file has changed since it was last read, else nullopt.
  std::optional<absl::StatusOr<membership::Quotas>> ReadIfChanged();

 private:
  struct Look {
    ino_t inode = 0;
    off_t size = 0;
    int64_t modified_ns = 0;
    int error_number = 0;  // Not 0 if stat failed.

    friend bool operator==(const Look&, const Look&) = default;
  };

  Look LookAt() const;

  const std::string path_;
  Look last_;
};

}  // namespace talweg::scheduler

#endif  // TALWEG_SERVICES_SCHEDULER_QUOTAS_FILE_H_
