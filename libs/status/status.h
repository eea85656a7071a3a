// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_STATUS_STATUS_H_
#define TALWEG_LIBS_STATUS_STATUS_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <utility>

namespace talweg::status {

// The status of a failed system call. `what` says which call, on what ("bind 127.0.0.1:7447"). The
// text ends with the system's own. The code follows from errno: EADDRINUSE is ALREADY_EXISTS, for
// example.
absl::Status ErrnoStatus(int error_number, const std::string& what);

// The same failure, with `doing` in front of its text. OK stays OK.
absl::Status Annotate(const absl::Status& status, const std::string& doing);

// "PERMISSION_DENIED: bind 127.0.0.1:80: Permission denied", or "OK".
std::string StatusText(const absl::Status& status);

namespace internal {

inline const absl::Status& ToStatus(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& ToStatus(const absl::StatusOr<T>& result) {
  return result.status();
}

}  // namespace internal
}  // namespace talweg::status

#define TALWEG_STATUS_CONCAT_INNER(a, b) a##b
#define TALWEG_STATUS_CONCAT(a, b) TALWEG_STATUS_CONCAT_INNER(a, b)

// Leaves the function with the failure of `expression`, a Status or a StatusOr.
#define TALWEG_RETURN_IF_ERROR(expression)                               \
  do {                                                                   \
    auto&& talweg_status_result = (expression);                          \
    if (!talweg_status_result.ok()) [[unlikely]] {                       \
      return ::talweg::status::internal::ToStatus(talweg_status_result); \
    }                                                                    \
  } while (false)

// Leaves the function with the failure of `expression`, a StatusOr. Otherwise moves its value to
// `target`, which may declare a variable: TALWEG_ASSIGN_OR_RETURN(View view, LoadView()).
#define TALWEG_ASSIGN_OR_RETURN(target, expression)                                        \
  TALWEG_ASSIGN_OR_RETURN_INNER(TALWEG_STATUS_CONCAT(talweg_status_or_, __LINE__), target, \
                                expression)
// NOLINTBEGIN(bugprone-macro-parentheses): `target` may be a declaration.
#define TALWEG_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                     \
  if (!result.ok()) [[unlikely]] {                                \
    return ::talweg::status::internal::ToStatus(result);          \
  }                                                               \
  target = *std::move(result)
// NOLINTEND(bugprone-macro-parentheses)

#endif  // TALWEG_LIBS_STATUS_STATUS_H_
