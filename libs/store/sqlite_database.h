// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_STORE_SQLITE_DATABASE_H_
#define TALWEG_LIBS_STORE_SQLITE_DATABASE_H_

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace talweg::store {

struct SqliteCloser {
  void operator()(sqlite3* database) const { sqlite3_close_v2(database); }
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using SqliteHandle = std::unique_ptr<sqlite3, SqliteCloser>;

// "store /path: cannot write: disk I/O error (SQLite's code 778: Input/output error)"
absl::Status SqliteError(sqlite3* database, const std::string& path, const std::string& doing);

// One statement, bound and read from left to right. status() returns the first failure. Unsigned
// 64-bit values are stored as the signed values with the same bits.
class Statement {
 public:
  Statement(sqlite3* database, const std::string& path, const char* sql);

  template <typename... Values>
  Statement& Bind(const Values&... values) {
    (BindNext(values), ...);
    return *this;
  }
  // Runs a statement without rows.
  absl::Status Run();
  // Whether there is another row. False also after a failure.
  bool Next() { return Step("read"); }
  // The columns of the row, in order.
  uint64_t Number() {
    return static_cast<uint64_t>(sqlite3_column_int64(handle_.get(), column_++));
  }
  std::string Text();
  bool Null() const { return sqlite3_column_type(handle_.get(), column_) == SQLITE_NULL; }
  const absl::Status& status() const { return status_; }

 private:
  bool Step(const char* doing);
  void BindNext(uint64_t value);
  void BindNext(const std::string& value);
  void Note(int code, const char* doing);

  sqlite3* const database_;
  const std::string path_;
  std::unique_ptr<sqlite3_stmt, SqliteCloser> handle_;
  int parameter_ = 0;
  int column_ = 0;
  absl::Status status_;
};

}  // namespace talweg::store

#endif  // TALWEG_LIBS_STORE_SQLITE_DATABASE_H_
