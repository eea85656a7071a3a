// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DAEMON_OUTCOME_H_
#define TALWEG_LIBS_SHM_DAEMON_OUTCOME_H_

#include <optional>
#include <string>
#include <utility>

#include "libs/base/check.h"
#include "libs/shm/layout/rank_status.h"

namespace talweg::shm {

// Why something failed: a status for the rank, and a text that names thing, value and remedy.
// (absl::Status would do, but libs/shm uses the standard library only.)
struct Failure {
  RankStatus status = RankStatus::kInternal;
  std::string text;
};

// A T, or why there is none.
template <typename T>
class [[nodiscard]] Outcome {
 public:
  Outcome(T value) : value_(std::move(value)) {}              // NOLINT: implicit, as in StatusOr.
  Outcome(Failure failure) : failure_(std::move(failure)) {}  // NOLINT

  bool ok() const { return value_.has_value(); }
  const Failure& failure() const {
    TALWEG_CHECK(!ok());
    return failure_;
  }
  T& value() & {
    TALWEG_CHECK(ok());
    return *value_;
  }
  const T& value() const& {
    TALWEG_CHECK(ok());
    return *value_;
  }
  T&& value() && {
    TALWEG_CHECK(ok());
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
  Failure failure_;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_OUTCOME_H_
