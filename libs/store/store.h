// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_STORE_STORE_H_
#define TALWEG_LIBS_STORE_STORE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/membership/records.h"

// Keeps what the scheduler must not forget.
namespace talweg::store {

// One owner thread. Calls block for as long as the disk takes.
class Store {
 public:
  virtual ~Store() = default;

  // Returns everything that was written. DATA_LOSS names what cannot be read.
  virtual absl::StatusOr<membership::Snapshot> Load() = 0;

  // Stores all of the change or nothing. When it returns OK, the change survives a crash of the
  // process; it also survives a crash of the host if the disk keeps its promises. After a failure
  // the store is as before. The caller's state has moved on, so the caller must not use it any
  // more.
  virtual absl::Status Write(const membership::StoreWrite& write) = 0;

  // For people: "sqlite:/var/lib/talweg/scheduler.sqlite", "memory".
  virtual const std::string& name() const = 0;
};

// A store that is lost with the process.
std::unique_ptr<Store> MakeMemoryStore();

// A SQLite database. Makes it, with missing directories, if there is none. Its owner holds a lock
// on `<path>.lock` for as long as it lives.
//   FAILED_PRECONDITION  another process has it open (named), or a newer version has written it.
//   DATA_LOSS            it is damaged, or another program's database.
absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const std::string& path);

}  // namespace talweg::store

#endif  // TALWEG_LIBS_STORE_STORE_H_
