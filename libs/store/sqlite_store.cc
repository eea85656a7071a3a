// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "libs/status/status.h"
#include "libs/store/sqlite_database.h"
#include "libs/store/store.h"

namespace talweg::store {
namespace {

using membership::AggregatorRecord;
using membership::AggregatorState;
using membership::JobRecord;
using membership::JobState;
using membership::LossPolicy;
using membership::MemberRecord;
using membership::MemberState;
using membership::Snapshot;
using membership::StoreWrite;

constexpr uint64_t kApplicationId = 0x54616c77;  // "Talw"
constexpr uint64_t kSchemaVersion = 8;

constexpr char kSchema[] = R"sql(
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE jobs (
  job_id INTEGER PRIMARY KEY, name TEXT NOT NULL, state INTEGER NOT NULL, text TEXT NOT NULL,
  min_members INTEGER NOT NULL, max_members INTEGER NOT NULL, slice_bytes_max INTEGER NOT NULL,
  loss_policy INTEGER NOT NULL, join_timeout_ns INTEGER NOT NULL, epoch_floor INTEGER NOT NULL,
  created_unix_ns INTEGER NOT NULL, view_epoch INTEGER, view_slice_bytes_max INTEGER,
  gather_ns INTEGER NOT NULL DEFAULT 0, view_steps INTEGER NOT NULL DEFAULT 0,
  tenant TEXT NOT NULL DEFAULT '', dealing TEXT NOT NULL DEFAULT 'striped',
  view_dealing TEXT NOT NULL DEFAULT 'striped', begin_members INTEGER NOT NULL DEFAULT 0);
CREATE TABLE members (
  job_id INTEGER NOT NULL, position INTEGER NOT NULL, node_rank INTEGER NOT NULL,
  incarnation INTEGER NOT NULL, rank_count INTEGER NOT NULL, name TEXT NOT NULL,
  admin_address TEXT NOT NULL, host_id TEXT NOT NULL, state INTEGER NOT NULL, text TEXT NOT NULL,
  secret_hash TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (job_id, position)) WITHOUT ROWID;
CREATE TABLE view_members (
  job_id INTEGER NOT NULL, position INTEGER NOT NULL, node_rank INTEGER NOT NULL,
  incarnation INTEGER NOT NULL, rank_count INTEGER NOT NULL, name TEXT NOT NULL,
  admin_address TEXT NOT NULL, host_id TEXT NOT NULL DEFAULT '',
  standby INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (job_id, position)) WITHOUT ROWID;
CREATE TABLE view_aggregators (
  job_id INTEGER NOT NULL, position INTEGER NOT NULL, incarnation INTEGER NOT NULL,
  name TEXT NOT NULL, weight INTEGER NOT NULL, data_address TEXT NOT NULL, host_id TEXT NOT NULL,
  admin_address TEXT NOT NULL, PRIMARY KEY (job_id, position)) WITHOUT ROWID;
CREATE TABLE aggregators (
  incarnation INTEGER PRIMARY KEY, name TEXT NOT NULL, weight INTEGER NOT NULL,
  data_address TEXT NOT NULL, host_id TEXT NOT NULL, admin_address TEXT NOT NULL,
  state INTEGER NOT NULL, text TEXT NOT NULL, secret_hash TEXT NOT NULL DEFAULT '');
)sql";

std::string HexOf(const membership::SecretHash& hash) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : hash.bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// Parses HexOf's output; "" is an empty hash.
bool ReadHex(const std::string& text, membership::SecretHash& hash) {
  if (text.empty()) return true;
  if (text.size() != 2 * hash.bytes.size()) return false;
  for (size_t i = 0; i < hash.bytes.size(); ++i) {
    const char* const begin = text.data() + 2 * i;
    const auto [end, error] = std::from_chars(begin, begin + 2, hash.bytes[i], 16);
    if (error != std::errc() || end != begin + 2) return false;
  }
  return true;
}

// The status of a failed system call, with the remedy if there is no room.
absl::Status FileStatus(int error_number, const std::string& what) {
  const absl::Status failed = status::ErrnoStatus(error_number, what);
  if (failed.code() != absl::StatusCode::kResourceExhausted) return failed;
  return absl::ResourceExhaustedError(std::string(failed.message()) + "; make room on its disk");
}

constexpr const char* kJobTables[] = {"jobs", "members", "view_members", "view_aggregators"};

// The right to be the store's only writer, for as long as this lives or until the process ends in
// any way.
class Lock {
 public:
  static absl::StatusOr<std::unique_ptr<Lock>> Take(const std::string& store_path) {
    const std::string path = store_path + ".lock";
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return FileStatus(errno, "open " + path);
    auto lock = std::unique_ptr<Lock>(new Lock(fd));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return FileStatus(errno, "lock " + path);
      char holder[32] = "";
      const ssize_t bytes = pread(fd, holder, sizeof holder - 1, 0);
      const std::string pid(holder, bytes > 0 ? static_cast<size_t>(bytes) : 0);
      return absl::FailedPreconditionError(
          "store " + store_path + " is in use by " +
          (pid.empty() ? "another process" : "process " + pid) + ", which holds the lock on " +
          path + "; one scheduler at a time: stop that one or give another store");
    }
    const std::string pid = std::to_string(getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, pid.data(), pid.size(), 0) < 0) {
      return FileStatus(errno, "write " + path);
    }
    return lock;
  }
  ~Lock() { close(fd_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  explicit Lock(int fd) : fd_(fd) {}
  const int fd_;
};

class SqliteStore final : public Store {
 public:
  SqliteStore(std::string path, std::unique_ptr<Lock> lock, SqliteHandle database)
      : path_(std::move(path)),
        name_("sqlite:" + path_),
        lock_(std::move(lock)),
        database_(std::move(database)) {}

  absl::Status Prepare();
  absl::StatusOr<Snapshot> Load() override;
  absl::Status Write(const StoreWrite& write) override;
  const std::string& name() const override { return name_; }

 private:
  Statement Sql(const char* sql) { return Statement(database_.get(), path_, sql); }
  absl::Status Run(const std::string& sql) { return Sql(sql.c_str()).Run(); }
  absl::StatusOr<uint64_t> Number(const char* sql);
  absl::Status MakeSchema();
  absl::Status Upgrade(uint64_t from);
  absl::Status WriteAll(const StoreWrite& write);
  absl::Status SetCounter(const std::string& name, uint64_t value);
  absl::Status PutJob(const JobRecord& job);
  absl::Status RemoveJob(JobId id);
  absl::Status ReadDealing(const JobRecord& job, const std::string& text, Dealing& dealing) const;
  absl::Status LoadMembers(JobRecord& job);
  absl::Status LoadView(JobRecord& job);
  absl::Status LoadAggregators(Snapshot& snapshot);
  absl::Status Damaged(const std::string& what) const {
    return absl::DataLossError("store " + path_ + " is damaged: " + what +
                               "; restore it from a backup, or move it away to start anew");
  }

  const std::string path_;
  const std::string name_;
  const std::unique_ptr<Lock> lock_;  // Released after the database is closed.
  const SqliteHandle database_;
};

absl::StatusOr<uint64_t> SqliteStore::Number(const char* sql) {
  Statement statement = Sql(sql);
  const uint64_t number = statement.Next() ? statement.Number() : 0;
  if (!statement.status().ok()) return statement.status();
  return number;
}

absl::Status SqliteStore::Prepare() {
  // One process opens it, so the write-ahead log needs no shared-memory file.
  TALWEG_RETURN_IF_ERROR(Run("PRAGMA locking_mode = EXCLUSIVE"));
  TALWEG_RETURN_IF_ERROR(Run("PRAGMA journal_mode = WAL"));
  // Every commit is on the disk when it returns.
  TALWEG_RETURN_IF_ERROR(Run("PRAGMA synchronous = FULL"));
  TALWEG_ASSIGN_OR_RETURN(const uint64_t table_count, Number("SELECT COUNT(*) FROM sqlite_master"));
  TALWEG_ASSIGN_OR_RETURN(const uint64_t application_id, Number("PRAGMA application_id"));
  TALWEG_ASSIGN_OR_RETURN(const uint64_t version, Number("PRAGMA user_version"));
  if (table_count == 0) return MakeSchema();
  if (application_id != kApplicationId) {
    return absl::DataLossError("store " + path_ +
                               " is a database of another program; give another path");
  }
  if (version > kSchemaVersion) {
    return absl::FailedPreconditionError(
        "store " + path_ + " was written by a newer scheduler (schema " + std::to_string(version) +
        ", this one knows " + std::to_string(kSchemaVersion) + "); run that one");
  }
  Statement check = Sql("PRAGMA integrity_check(1)");
  const std::string verdict = check.Next() ? check.Text() : "";
  TALWEG_RETURN_IF_ERROR(check.status());
  if (verdict != "ok") return Damaged(verdict);
  return version < kSchemaVersion ? Upgrade(version) : absl::OkStatus();
}

// Jobs of schema 1 get the gather_ns that members who name none count as asking for: a member that
// asks for another would be refused. Members and aggregators of schema 2 have shown no secret;
// nobody can speak for them any more. A view of schema 4 does not say where members are, and its
// holders place tensors by that. Before schema 6 all jobs were striped.
absl::Status SqliteStore::Upgrade(uint64_t from) {
  std::string sql = "BEGIN IMMEDIATE;";
  if (from < 2) {
    sql +=
        "ALTER TABLE jobs ADD COLUMN gather_ns INTEGER NOT NULL DEFAULT 0;"
        "UPDATE jobs SET gather_ns = " +
        std::to_string(membership::kDefaultGatherNs) + ";";
  }
  if (from < 3) {
    sql +=
        "ALTER TABLE members ADD COLUMN secret_hash TEXT NOT NULL DEFAULT '';"
        "ALTER TABLE aggregators ADD COLUMN secret_hash TEXT NOT NULL DEFAULT '';";
  }
  if (from < 4) sql += "ALTER TABLE jobs ADD COLUMN view_steps INTEGER NOT NULL DEFAULT 0;";
  if (from < 5) {
    sql +=
        "ALTER TABLE jobs ADD COLUMN tenant TEXT NOT NULL DEFAULT '';"
        "ALTER TABLE view_members ADD COLUMN host_id TEXT NOT NULL DEFAULT '';";
  }
  if (from < 6) {
    sql +=
        "ALTER TABLE jobs ADD COLUMN dealing TEXT NOT NULL DEFAULT 'striped';"
        "ALTER TABLE jobs ADD COLUMN view_dealing TEXT NOT NULL DEFAULT 'striped';";
  }
  if (from < 7) sql += "ALTER TABLE view_members ADD COLUMN standby INTEGER NOT NULL DEFAULT 0;";
  sql += "ALTER TABLE jobs ADD COLUMN begin_members INTEGER NOT NULL DEFAULT 0;";
  sql += "PRAGMA user_version = " + std::to_string(kSchemaVersion) + ";COMMIT;";
  if (sqlite3_exec(database_.get(), sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) {
    return SqliteError(database_.get(), path_, "upgrade the schema");
  }
  return absl::OkStatus();
}

absl::Status SqliteStore::MakeSchema() {
  const std::string sql = "BEGIN IMMEDIATE;" + std::string(kSchema) +
                          "PRAGMA application_id = " + std::to_string(kApplicationId) +
                          ";PRAGMA user_version = " + std::to_string(kSchemaVersion) + ";COMMIT;";
  if (sqlite3_exec(database_.get(), sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) {
    return SqliteError(database_.get(), path_, "make the schema");
  }
  // The file's name must survive as well.
  const std::string directory = std::filesystem::path(path_).parent_path().string();
  const int fd =
      open(directory.empty() ? "." : directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return FileStatus(errno, "open " + directory);
  const int synced = fsync(fd) == 0 ? 0 : errno;
  close(fd);
  return synced == 0 ? absl::OkStatus() : FileStatus(synced, "sync " + directory);
}

absl::Status SqliteStore::Write(const StoreWrite& write) {
  TALWEG_RETURN_IF_ERROR(Run("BEGIN IMMEDIATE"));
  absl::Status status = WriteAll(write);
  if (status.ok()) status = Run("COMMIT");
  // SQLite rolls back by itself after some failures. Then the failure of this call means nothing.
  if (!status.ok() && sqlite3_get_autocommit(database_.get()) == 0) Run("ROLLBACK").IgnoreError();
  return status;
}

absl::Status SqliteStore::WriteAll(const StoreWrite& write) {
  if (write.start_count) TALWEG_RETURN_IF_ERROR(SetCounter("start_count", *write.start_count));
  if (write.job_next) TALWEG_RETURN_IF_ERROR(SetCounter("job_next", write.job_next->value()));
  for (const JobRecord& job : write.jobs) {
    TALWEG_RETURN_IF_ERROR(RemoveJob(job.id));
    TALWEG_RETURN_IF_ERROR(PutJob(job));
  }
  for (const JobId id : write.jobs_removed) TALWEG_RETURN_IF_ERROR(RemoveJob(id));
  for (const AggregatorRecord& record : write.aggregators) {
    const view::ViewAggregator& aggregator = record.aggregator;
    TALWEG_RETURN_IF_ERROR(
        Sql("INSERT OR REPLACE INTO aggregators VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)")
            .Bind(aggregator.incarnation.value(), aggregator.name, uint64_t{aggregator.weight},
                  aggregator.data_address, aggregator.host_id, aggregator.admin_address,
                  static_cast<uint64_t>(record.state), record.text, HexOf(record.secret))
            .Run());
  }
  for (const Incarnation id : write.aggregators_removed) {
    TALWEG_RETURN_IF_ERROR(
        Sql("DELETE FROM aggregators WHERE incarnation = ?").Bind(id.value()).Run());
  }
  return absl::OkStatus();
}

absl::Status SqliteStore::SetCounter(const std::string& name, uint64_t value) {
  return Sql("INSERT OR REPLACE INTO counters VALUES (?, ?)").Bind(name, value).Run();
}

absl::Status SqliteStore::RemoveJob(JobId id) {
  for (const char* table : kJobTables) {
    const std::string sql = std::string("DELETE FROM ") + table + " WHERE job_id = ?";
    TALWEG_RETURN_IF_ERROR(Sql(sql.c_str()).Bind(id.value()).Run());
  }
  return absl::OkStatus();
}

absl::Status SqliteStore::PutJob(const JobRecord& job) {
  const uint64_t id = job.id.value();
  TALWEG_RETURN_IF_ERROR(
      Sql("INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL, ?, 0, ?, ?, "
          "'striped', ?)")
          .Bind(id, job.name, static_cast<uint64_t>(job.state), job.text,
                uint64_t{job.spec.min_members}, uint64_t{job.spec.max_members},
                job.spec.slice_bytes_max, static_cast<uint64_t>(job.spec.loss_policy),
                static_cast<uint64_t>(job.spec.join_timeout_ns), job.epoch_floor.value(),
                static_cast<uint64_t>(job.created_unix_ns),
                static_cast<uint64_t>(job.spec.gather_ns), job.spec.tenant,
                DealingText(job.spec.dealing), uint64_t{job.spec.begin_members})
          .Run());
  uint64_t position = 0;
  for (const MemberRecord& record : job.members) {
    const view::ViewMember& member = record.member;
    TALWEG_RETURN_IF_ERROR(
        Sql("INSERT INTO members VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
            .Bind(id, position++, uint64_t{member.id.node.value()}, member.id.incarnation.value(),
                  uint64_t{member.rank_count}, member.name, member.admin_address, member.host_id,
                  static_cast<uint64_t>(record.state), record.text, HexOf(record.secret))
            .Run());
  }
  if (!job.view) return absl::OkStatus();
  TALWEG_RETURN_IF_ERROR(
      Sql("UPDATE jobs SET view_epoch = ?, view_slice_bytes_max = ?, view_steps = ?, "
          "view_dealing = ? WHERE job_id = ?")
          .Bind(job.view->epoch.value(), job.view->slice_bytes_max, job.view->steps,
                DealingText(job.view->dealing), id)
          .Run());
  position = 0;
  for (const view::ViewMember& member : job.view->members) {
    TALWEG_RETURN_IF_ERROR(Sql("INSERT INTO view_members VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)")
                               .Bind(id, position++, uint64_t{member.id.node.value()},
                                     member.id.incarnation.value(), uint64_t{member.rank_count},
                                     member.name, member.admin_address, member.host_id,
                                     uint64_t{member.standby})
                               .Run());
  }
  position = 0;
  for (const view::ViewAggregator& aggregator : job.view->aggregators) {
    TALWEG_RETURN_IF_ERROR(Sql("INSERT INTO view_aggregators VALUES (?, ?, ?, ?, ?, ?, ?, ?)")
                               .Bind(id, position++, aggregator.incarnation.value(),
                                     aggregator.name, uint64_t{aggregator.weight},
                                     aggregator.data_address, aggregator.host_id,
                                     aggregator.admin_address)
                               .Run());
  }
  return absl::OkStatus();
}

absl::StatusOr<Snapshot> SqliteStore::Load() {
  Snapshot snapshot;
  TALWEG_ASSIGN_OR_RETURN(snapshot.start_count,
                          Number("SELECT value FROM counters WHERE name = 'start_count'"));
  TALWEG_ASSIGN_OR_RETURN(const uint64_t job_next,
                          Number("SELECT value FROM counters WHERE name = 'job_next'"));
  if (job_next > 0) snapshot.job_next = JobId{job_next};
  Statement rows =
      Sql("SELECT job_id, name, state, text, min_members, max_members, slice_bytes_max, "
          "loss_policy, join_timeout_ns, gather_ns, begin_members, tenant, dealing, epoch_floor, "
          "created_unix_ns, view_epoch, view_slice_bytes_max, view_steps, view_dealing FROM jobs "
          "ORDER BY job_id");
  while (rows.Next()) {
    JobRecord job;
    job.id = JobId{rows.Number()};
    job.name = rows.Text();
    job.state = static_cast<JobState>(rows.Number());
    job.text = rows.Text();
    job.spec.min_members = static_cast<uint32_t>(rows.Number());
    job.spec.max_members = static_cast<uint32_t>(rows.Number());
    job.spec.slice_bytes_max = rows.Number();
    job.spec.loss_policy = static_cast<LossPolicy>(rows.Number());
    job.spec.join_timeout_ns = static_cast<int64_t>(rows.Number());
    job.spec.gather_ns = static_cast<int64_t>(rows.Number());
    job.spec.begin_members = static_cast<uint32_t>(rows.Number());
    job.spec.tenant = rows.Text();
    TALWEG_RETURN_IF_ERROR(ReadDealing(job, rows.Text(), job.spec.dealing));
    job.epoch_floor = Epoch{rows.Number()};
    job.created_unix_ns = static_cast<int64_t>(rows.Number());
    if (!rows.Null()) {
      job.view = view::View{.job = job.id, .epoch = Epoch{rows.Number()}};
      job.view->slice_bytes_max = rows.Number();
      job.view->steps = rows.Number();
      TALWEG_RETURN_IF_ERROR(ReadDealing(job, rows.Text(), job.view->dealing));
    }
    TALWEG_RETURN_IF_ERROR(LoadMembers(job));
    if (job.view) TALWEG_RETURN_IF_ERROR(LoadView(job));
    const std::string name = "job " + std::to_string(job.id.value());
    if (job.state < JobState::kForming || job.state > JobState::kFinished ||
        job.spec.loss_policy < LossPolicy::kFailJob ||
        job.spec.loss_policy > LossPolicy::kContinue) {
      return Damaged(name + " has an unknown state or policy");
    }
    if (job.state == JobState::kRunning && !job.view) return Damaged(name + " runs without a view");
    snapshot.jobs.push_back(std::move(job));
  }
  TALWEG_RETURN_IF_ERROR(rows.status());
  TALWEG_RETURN_IF_ERROR(LoadAggregators(snapshot));
  return snapshot;
}

absl::Status SqliteStore::ReadDealing(const JobRecord& job, const std::string& text,
                                      Dealing& dealing) const {
  const std::optional<Dealing> read = ParseDealing(text);
  if (!read) {
    return Damaged("the dealing of job " + std::to_string(job.id.value()) + " is '" + text + "'");
  }
  dealing = *read;
  return absl::OkStatus();
}

absl::Status SqliteStore::LoadMembers(JobRecord& job) {
  Statement rows =
      Sql("SELECT node_rank, incarnation, rank_count, name, admin_address, host_id, state, text, "
          "secret_hash FROM members WHERE job_id = ? ORDER BY position");
  rows.Bind(job.id.value());
  while (rows.Next()) {
    MemberRecord record;
    record.member.id.node = NodeRank{static_cast<uint32_t>(rows.Number())};
    record.member.id.incarnation = Incarnation{rows.Number()};
    record.member.rank_count = static_cast<uint32_t>(rows.Number());
    record.member.name = rows.Text();
    record.member.admin_address = rows.Text();
    record.member.host_id = rows.Text();
    record.state = static_cast<MemberState>(rows.Number());
    record.text = rows.Text();
    if (!ReadHex(rows.Text(), record.secret)) {
      return Damaged("the secret's hash of node " + std::to_string(record.member.id.node.value()) +
                     " of job " + std::to_string(job.id.value()) + " is not a hash");
    }
    if (record.state < MemberState::kJoined || record.state > MemberState::kLeft) {
      return Damaged("job " + std::to_string(job.id.value()) + " has a member of unknown state");
    }
    job.members.push_back(std::move(record));
  }
  return rows.status();
}

absl::Status SqliteStore::LoadView(JobRecord& job) {
  Statement members =
      Sql("SELECT node_rank, incarnation, rank_count, name, admin_address, host_id, standby "
          "FROM view_members WHERE job_id = ? ORDER BY position");
  members.Bind(job.id.value());
  while (members.Next()) {
    view::ViewMember member;
    member.id.node = NodeRank{static_cast<uint32_t>(members.Number())};
    member.id.incarnation = Incarnation{members.Number()};
    member.rank_count = static_cast<uint32_t>(members.Number());
    member.name = members.Text();
    member.admin_address = members.Text();
    member.host_id = members.Text();
    member.standby = members.Number() != 0;
    job.view->members.push_back(std::move(member));
  }
  TALWEG_RETURN_IF_ERROR(members.status());
  Statement aggregators =
      Sql("SELECT incarnation, name, weight, data_address, host_id, admin_address "
          "FROM view_aggregators WHERE job_id = ? ORDER BY position");
  aggregators.Bind(job.id.value());
  while (aggregators.Next()) {
    view::ViewAggregator aggregator;
    aggregator.incarnation = Incarnation{aggregators.Number()};
    aggregator.name = aggregators.Text();
    aggregator.weight = static_cast<uint32_t>(aggregators.Number());
    aggregator.data_address = aggregators.Text();
    aggregator.host_id = aggregators.Text();
    aggregator.admin_address = aggregators.Text();
    job.view->aggregators.push_back(std::move(aggregator));
  }
  TALWEG_RETURN_IF_ERROR(aggregators.status());
  const std::string problem = job.view->Problem();
  if (problem.empty()) return absl::OkStatus();
  return Damaged("the view of job " + std::to_string(job.id.value()) + ": " + problem);
}

absl::Status SqliteStore::LoadAggregators(Snapshot& snapshot) {
  Statement rows =
      Sql("SELECT incarnation, name, weight, data_address, host_id, admin_address, state, text, "
          "secret_hash FROM aggregators");
  StoreWrite sorted;
  while (rows.Next()) {
    AggregatorRecord record;
    record.aggregator.incarnation = Incarnation{rows.Number()};
    record.aggregator.name = rows.Text();
    record.aggregator.weight = static_cast<uint32_t>(rows.Number());
    record.aggregator.data_address = rows.Text();
    record.aggregator.host_id = rows.Text();
    record.aggregator.admin_address = rows.Text();
    record.state = static_cast<AggregatorState>(rows.Number());
    record.text = rows.Text();
    if (!ReadHex(rows.Text(), record.secret)) {
      return Damaged("the secret's hash of aggregator " + record.aggregator.name +
                     " is not a hash");
    }
    if (record.state < AggregatorState::kLive || record.state > AggregatorState::kLost) {
      return Damaged("aggregator " + record.aggregator.name + " has an unknown state");
    }
    sorted.aggregators.push_back(std::move(record));
  }
  // SQLite orders incarnations as signed numbers; Apply sorts them.
  membership::Apply(sorted, snapshot);
  return rows.status();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const std::string& path) {
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!directory.empty() && !std::filesystem::exists(directory, error)) {
    std::filesystem::create_directories(directory, error);
    if (error) return FileStatus(error.value(), "make the directory " + directory.string());
    std::filesystem::permissions(directory, std::filesystem::perms::owner_all, error);
  }
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError("store " + path +
                                      " is a directory; name a file in it, such as " +
                                      (std::filesystem::path(path) / "scheduler.db").string());
  }
  TALWEG_ASSIGN_OR_RETURN(std::unique_ptr<Lock> lock, Lock::Take(path));
  // Views hold what lets members into aggregators. SQLite's other files get this file's mode.
  const int made = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (made < 0) return FileStatus(errno, "open store " + path);
  close(made);  // Later this would end SQLite's locks.
  sqlite3* opened = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &opened, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  SqliteHandle database(opened);
  if (code != SQLITE_OK) return SqliteError(database.get(), path, "open it");
  auto store = std::make_unique<SqliteStore>(path, std::move(lock), std::move(database));
  TALWEG_RETURN_IF_ERROR(store->Prepare());
  // An older release has left them readable for others.
  for (const std::string& file : {path, path + "-wal"}) {
    if (chmod(file.c_str(), 0600) != 0 && errno != ENOENT) {
      return FileStatus(errno, "chmod 600 " + file);
    }
  }
  return store;
}

}  // namespace talweg::store
