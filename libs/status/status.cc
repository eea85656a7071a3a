// SPDX-License-Identifier: Apache-2.0
#include "libs/status/status.h"

#include <absl/strings/str_cat.h>

#include <cerrno>
#include <system_error>

namespace talweg::status {
namespace {

absl::StatusCode CodeOf(int error_number) {
  switch (error_number) {
    case 0: return absl::StatusCode::kOk;
    case EINVAL:
    case ENAMETOOLONG:
    case EAFNOSUPPORT: return absl::StatusCode::kInvalidArgument;
    case ENOENT:
    case ENODEV:
    case ENXIO:
    case ESRCH:
    case EADDRNOTAVAIL: return absl::StatusCode::kNotFound;
    case EEXIST:
    case EADDRINUSE: return absl::StatusCode::kAlreadyExists;
    case EPERM:
    case EACCES:
    case EROFS: return absl::StatusCode::kPermissionDenied;
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case ENOSPC:
    case EDQUOT:
    case ENOBUFS: return absl::StatusCode::kResourceExhausted;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case ENETUNREACH:
    case EHOSTUNREACH:
    case EAGAIN: return absl::StatusCode::kUnavailable;
    case ETIMEDOUT: return absl::StatusCode::kDeadlineExceeded;
    case ENOSYS:
    case EOPNOTSUPP: return absl::StatusCode::kUnimplemented;
    default: return absl::StatusCode::kUnknown;
  }
}

}  // namespace

absl::Status ErrnoStatus(int error_number, const std::string& what) {
  return absl::Status(CodeOf(error_number),
                      absl::StrCat(what, ": ", std::generic_category().message(error_number)));
}

absl::Status Annotate(const absl::Status& status, const std::string& doing) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(doing, ": ", status.message()));
}

std::string StatusText(const absl::Status& status) {
  if (status.ok()) return "OK";
  return absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
}

}  // namespace talweg::status
