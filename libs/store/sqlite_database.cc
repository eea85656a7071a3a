// SPDX-License-Identifier: Apache-2.0
#include "libs/store/sqlite_database.h"

#include <cerrno>
#include <system_error>

namespace talweg::store {

absl::Status SqliteError(sqlite3* database, const std::string& path, const std::string& doing) {
  const int code = sqlite3_errcode(database) & 0xff;
  std::string text = "store " + path + ": cannot " + doing + ": " + sqlite3_errmsg(database) +
                     " (SQLite's code " + std::to_string(sqlite3_extended_errcode(database));
  const bool has_cause = code == SQLITE_IOERR || code == SQLITE_CANTOPEN;
  const int cause = has_cause ? sqlite3_system_errno(database) : 0;
  if (cause != 0) text += ": " + std::generic_category().message(cause);
  text += ")";
  if (cause == EDQUOT || cause == EFBIG) {
    return absl::ResourceExhaustedError(text + "; raise that limit, or make room below it");
  }
  switch (code) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(text +
                                 "; restore it from a backup, or move it away to start anew");
    case SQLITE_FULL: return absl::ResourceExhaustedError(text + "; make room on its disk");
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::FailedPreconditionError(text + "; another process has it open");
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
      return absl::PermissionDeniedError(text + "; check its directory and its permissions");
    case SQLITE_IOERR: return absl::InternalError(text + "; check its disk, or move it to another");
    default: return absl::InternalError(text);
  }
}

Statement::Statement(sqlite3* database, const std::string& path, const char* sql)
    : database_(database), path_(path) {
  sqlite3_stmt* statement = nullptr;
  Note(sqlite3_prepare_v2(database, sql, -1, &statement, nullptr), "prepare a statement");
  handle_.reset(statement);
}

void Statement::Note(int code, const char* doing) {
  if (code == SQLITE_OK || !status_.ok()) return;
  status_ = SqliteError(database_, path_, doing);
}

void Statement::BindNext(uint64_t value) {
  if (!status_.ok()) return;
  Note(sqlite3_bind_int64(handle_.get(), ++parameter_, static_cast<sqlite3_int64>(value)),
       "bind a number");
}

void Statement::BindNext(const std::string& value) {
  if (!status_.ok()) return;
  Note(sqlite3_bind_text64(handle_.get(), ++parameter_, value.data(), value.size(),
                           SQLITE_TRANSIENT, SQLITE_UTF8),
       "bind a text");
}

absl::Status Statement::Run() {
  while (Step("write")) {
  }
  return status_;
}

bool Statement::Step(const char* doing) {
  if (!status_.ok()) return false;
  column_ = 0;
  const int code = sqlite3_step(handle_.get());
  if (code == SQLITE_ROW) return true;
  if (code != SQLITE_DONE) Note(code, doing);
  return false;
}

std::string Statement::Text() {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(handle_.get(), column_));
  const int bytes = sqlite3_column_bytes(handle_.get(), column_++);
  return text == nullptr ? "" : std::string(text, static_cast<size_t>(bytes));
}

}  // namespace talweg::store
