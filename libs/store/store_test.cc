// SPDX-License-Identifier: Apache-2.0
#include "libs/store/store.h"

#include <sched.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>

#include <catch2/catch.hpp>

#include "libs/base/random.h"
#include "libs/base/test_directory.h"

namespace talweg::store {
namespace {

using membership::AggregatorRecord;
using membership::AggregatorState;
using membership::JobRecord;
using membership::JobState;
using membership::LossPolicy;
using membership::MemberState;
using membership::Snapshot;
using membership::StoreWrite;

std::unique_ptr<Store> Open(const std::string& path) {
  absl::StatusOr<std::unique_ptr<Store>> store = OpenSqliteStore(path);
  INFO(store.status().ToString());
  REQUIRE(store.ok());
  return *std::move(store);
}

Snapshot LoadOf(Store& store) {
  absl::StatusOr<Snapshot> snapshot = store.Load();
  INFO(snapshot.status().ToString());
  REQUIRE(snapshot.ok());
  return *std::move(snapshot);
}

void MustWrite(Store& store, const StoreWrite& write) {
  const absl::Status status = store.Write(write);
  INFO(status.ToString());
  REQUIRE(status.ok());
}

std::string RandomText(Random& random) {
  std::string text;
  for (uint64_t i = random.Below(12); i > 0; --i) {
    constexpr const char* kPieces[] = {"a", "'", "\"", "ü", " ", "\n", "%", "漢"};
    text += kPieces[random.Below(8)];
  }
  return text;
}

membership::SecretHash RandomHash(Random& random) {
  membership::SecretHash hash;
  for (uint8_t& byte : hash.bytes) byte = static_cast<uint8_t>(random.Below(256));
  return hash;
}

view::ViewMember RandomMember(Random& random, uint32_t node) {
  return {.id = {NodeRank{node}, Incarnation{random.Next()}},
          .rank_count = 1 + static_cast<uint32_t>(random.Below(8)),
          .name = RandomText(random),
          .admin_address = RandomText(random),
          .host_id = RandomText(random)};
}

view::ViewAggregator RandomAggregator(Random& random, uint32_t index) {
  return {.incarnation = Incarnation{random.Next()},
          .name = "a" + std::to_string(index),
          .weight = 1 + static_cast<uint32_t>(random.Below(5)),
          .data_address = RandomText(random),
          .host_id = RandomText(random),
          .admin_address = RandomText(random)};
}

Dealing RandomDealing(Random& random) {
  constexpr const char* kTexts[] = {"striped", "djb2", "fingerprint:3", "weighted:4294967295"};
  return ParseDealing(kTexts[random.Below(4)]).value();
}

JobRecord RandomJob(Random& random, JobId id) {
  JobRecord job{
      .id = id,
      .name = RandomText(random),
      .spec = {.min_members = 1 + static_cast<uint32_t>(random.Below(3)),
               .max_members = 7,
               .begin_members = static_cast<uint32_t>(random.Below(8)),
               .slice_bytes_max = uint64_t{64} << random.Below(20),
               .dealing = RandomDealing(random),
               .loss_policy = random.OneIn(2) ? LossPolicy::kFailJob : LossPolicy::kContinue,
               .join_timeout_ns = static_cast<int64_t>(random.Next() >> 1),
               .gather_ns = static_cast<int64_t>(random.Next() >> 1),
               .tenant = RandomText(random)},
      .state = JobState::kForming,
      .text = RandomText(random),
      .epoch_floor = Epoch{random.Next() >> 2},
      .created_unix_ns = static_cast<int64_t>(random.Next() >> 1)};
  for (uint32_t i = 0; i < random.Below(4); ++i) {
    job.members.push_back({.member = RandomMember(random, i),
                           .state = MemberState{static_cast<uint8_t>(1 + random.Below(3))},
                           .text = RandomText(random),
                           .secret = RandomHash(random)});
  }
  if (random.OneIn(2)) {
    job.state = JobState{static_cast<uint8_t>(2 + random.Below(3))};
    job.view = view::View{.job = id, .epoch = Epoch{1 + (random.Next() >> 2)}};
    job.view->dealing = RandomDealing(random);
    for (uint32_t i = 0; i < random.Below(4); ++i) {
      job.view->members.push_back(RandomMember(random, i));
      job.view->aggregators.push_back(RandomAggregator(random, i));
    }
  }
  return job;
}

StoreWrite RandomWrite(Random& random) {
  StoreWrite write;
  if (random.OneIn(3)) write.start_count = random.Next();
  if (random.OneIn(3)) write.job_next = JobId{100 + random.Below(1000)};
  for (uint64_t i = 1; i < 6; ++i) {
    if (random.OneIn(3)) write.jobs.push_back(RandomJob(random, JobId{i}));
  }
  if (random.OneIn(3)) write.jobs_removed.push_back(JobId{6 + random.Below(3)});
  if (random.OneIn(4)) write.jobs.push_back(RandomJob(random, JobId{6 + random.Below(3)}));
  for (uint32_t i = 0; i < random.Below(3); ++i) {
    AggregatorRecord record{.aggregator = RandomAggregator(random, i),
                            .state = AggregatorState{static_cast<uint8_t>(1 + random.Below(3))},
                            .text = RandomText(random),
                            .secret = RandomHash(random)};
    // There are few numbers, so that some are replaced and removed. Some have the highest bit.
    record.aggregator.incarnation = Incarnation{random.Below(3) - 1};
    write.aggregators.push_back(record);
  }
  if (random.OneIn(3)) write.aggregators_removed.push_back(Incarnation{random.Below(3) - 1});
  return write;
}

TEST_CASE("Store: SQLite gives back what memory does, even after it is opened again", "[store]") {
  const TestDirectory directory;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const std::unique_ptr<Store> memory = MakeMemoryStore();
    const std::string path = directory.Path("store" + std::to_string(seed));
    std::unique_ptr<Store> sqlite = Open(path);
    CHECK(LoadOf(*sqlite) == Snapshot{});
    for (int step = 0; step < 25; ++step) {
      const StoreWrite write = RandomWrite(random);
      MustWrite(*memory, write);
      MustWrite(*sqlite, write);
      if (random.OneIn(6)) {
        sqlite.reset();
        sqlite = Open(path);
      }
      CHECK(LoadOf(*sqlite) == LoadOf(*memory));
    }
  }
}

// A child writes epochs 1, 2, 3, ... and acknowledges each through a pipe once it is stored. It is
// killed at a random moment. Afterwards the store has the last acknowledged epoch, or the one after
// it.
TEST_CASE("Store: kill -9 at any moment takes back nothing that was acknowledged", "[store]") {
  const TestDirectory directory;
  const std::string path = directory.Path("store");
  Random random(7);
  uint64_t epoch = 0;
  uint64_t acknowledged_total = 0;
  for (int life = 0; life < 12; ++life) {
    int channel[2];
    REQUIRE(pipe(channel) == 0);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      close(channel[0]);
      absl::StatusOr<std::unique_ptr<Store>> store = OpenSqliteStore(path);
      if (!store.ok()) _exit(1);
      absl::StatusOr<Snapshot> snapshot = (*store)->Load();
      if (!snapshot.ok()) _exit(2);
      uint64_t next = snapshot->jobs.empty() ? 0 : snapshot->jobs[0].epoch_floor.value();
      while (true) {
        ++next;
        StoreWrite write;
        write.job_next = JobId{next};
        write.jobs.push_back({.id = JobId{1}, .name = "job", .epoch_floor = Epoch{next}});
        if (!(*store)->Write(write).ok()) _exit(3);
        if (::write(channel[1], &next, sizeof next) != sizeof next) _exit(4);
      }
    }
    close(channel[1]);
    uint64_t acknowledged = epoch;
    uint64_t got = 0;
    // Waits for `left` writes and then for some microseconds, to hit any point of the next write.
    for (uint64_t left = random.Below(6); left > 0; --left) {
      if (read(channel[0], &got, sizeof got) != sizeof got) break;
      acknowledged = got;
    }
    timespec moment{.tv_sec = 0, .tv_nsec = static_cast<long>(random.Below(3'000'000))};
    nanosleep(&moment, nullptr);
    REQUIRE(kill(child, SIGKILL) == 0);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    while (read(channel[0], &got, sizeof got) == sizeof got) acknowledged = got;
    close(channel[0]);

    const std::unique_ptr<Store> store = Open(path);
    const Snapshot snapshot = LoadOf(*store);
    const uint64_t found = snapshot.jobs.empty() ? 0 : snapshot.jobs[0].epoch_floor.value();
    CHECK(found >= acknowledged);
    CHECK(found <= acknowledged + 1);
    // All of a change is stored, or nothing.
    if (found > 0) CHECK(snapshot.job_next == JobId{found});
    acknowledged_total += acknowledged - epoch;
    epoch = found;
  }
  CHECK(acknowledged_total > 5);
}

TEST_CASE("Store: a second writer is refused, and the text names the first one and the file",
          "[store]") {
  const TestDirectory directory;
  const std::string path = directory.Path("store");
  std::unique_ptr<Store> first = Open(path);
  const absl::StatusOr<std::unique_ptr<Store>> second = OpenSqliteStore(path);
  REQUIRE(second.status().code() == absl::StatusCode::kFailedPrecondition);
  const std::string text(second.status().message());
  CHECK(text.find("process " + std::to_string(getpid())) != std::string::npos);
  CHECK(text.find(path + ".lock") != std::string::npos);
  first.reset();
  CHECK(OpenSqliteStore(path).ok());
}

TEST_CASE("Store: missing directories are made, and the error names what cannot be opened",
          "[store]") {
  const TestDirectory directory;
  CHECK(OpenSqliteStore(directory.Path("a/b/store")).ok());
  std::ofstream(directory.Path("file")) << "text";
  const absl::StatusOr<std::unique_ptr<Store>> store =
      OpenSqliteStore(directory.Path("file/store"));
  REQUIRE_FALSE(store.ok());
  CHECK(std::string(store.status().message()).find("file") != std::string::npos);
  const absl::StatusOr<std::unique_ptr<Store>> of_directory = OpenSqliteStore(directory.Path("a"));
  REQUIRE_FALSE(of_directory.ok());
  CHECK(std::string(of_directory.status().message()) ==
        "store " + directory.Path("a") + " is a directory; name a file in it, such as " +
            directory.Path("a/scheduler.db"));
  CHECK_FALSE(std::filesystem::exists(directory.Path("a.lock")));
}

// A file system of its own in a directory, which only this process sees.
class SmallDisk {
 public:
  explicit SmallDisk(const std::string& path) : path_(path) {
    std::filesystem::create_directory(path);
    works_ = unshare(CLONE_NEWNS) == 0 && mount("", "/", "", MS_REC | MS_PRIVATE, "") == 0 &&
             mount("tmpfs", path.c_str(), "tmpfs", 0, "size=256k") == 0;
  }
  ~SmallDisk() {
    if (works_) umount2(path_.c_str(), MNT_DETACH);
  }
  bool works() const { return works_; }

  // Leaves no free byte.
  void Fill() const {
    std::ofstream file(path_ + "/filler", std::ios::binary);
    while (file << std::string(4096, 'x') << std::flush) {
    }
    REQUIRE(std::filesystem::space(path_).available == 0);
  }
  void MakeRoom() const { std::filesystem::remove(path_ + "/filler"); }

 private:
  const std::string path_;
  bool works_ = false;
};

TEST_CASE("Store: a full disk is named with its remedy, and nothing acknowledged is lost",
          "[store]") {
  const TestDirectory directory;
  const SmallDisk disk(directory.Path("disk"));
  if (!disk.works()) {
    std::printf("SKIPPED: this user may mount no file system\n");
    return;
  }
  const std::string path = directory.Path("disk/s.db");
  std::unique_ptr<Store> store = Open(path);
  StoreWrite write;
  absl::Status status;
  disk.Fill();
  Random random(4);
  Snapshot acknowledged;
  // The log may have room for some writes.
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    write = RandomWrite(random);
    status = store->Write(write);
    if (status.ok()) membership::Apply(write, acknowledged);
  }
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  const std::string text(status.message());
  CHECK(text.find("store " + path + ": cannot write: ") == 0);
  CHECK(text.find("full") != std::string::npos);
  CHECK(text.find("make room on its disk") != std::string::npos);
  CHECK(LoadOf(*store) == acknowledged);

  store.reset();
  const absl::Status other = OpenSqliteStore(directory.Path("disk/other.db")).status();
  CHECK(other.code() == absl::StatusCode::kResourceExhausted);
  CHECK(std::string(other.message()).find("make room on its disk") != std::string::npos);

  disk.MakeRoom();
  store = Open(path);
  CHECK(LoadOf(*store) == acknowledged);
  MustWrite(*store, write);
}

TEST_CASE("Store: only its user may read or write it", "[store]") {
  const TestDirectory directory;
  const std::string path = directory.Path("store");
  umask(0);
  for (const bool made_before : {false, true}) {
    CAPTURE(made_before);
    if (made_before) REQUIRE(chmod(path.c_str(), 0644) == 0);
    std::unique_ptr<Store> store = Open(path);
    StoreWrite write;
    write.start_count = 1;
    MustWrite(*store, write);
    for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
      CAPTURE(entry.path().string());
      CHECK((entry.status().permissions() & std::filesystem::perms::all) ==
            (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
    }
  }
}

void Execute(const std::string& path, const std::string& sql) {
  sqlite3* database = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &database) == SQLITE_OK);
  CHECK(sqlite3_exec(database, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(database);
}

// A file that a scheduler with schema 1 wrote, with a running job.
constexpr char kSchema1[] = R"sql(
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE jobs (
  job_id INTEGER PRIMARY KEY, name TEXT NOT NULL, state INTEGER NOT NULL, text TEXT NOT NULL,
  min_members INTEGER NOT NULL, max_members INTEGER NOT NULL, slice_bytes_max INTEGER NOT NULL,
  loss_policy INTEGER NOT NULL, join_timeout_ns INTEGER NOT NULL, epoch_floor INTEGER NOT NULL,
  created_unix_ns INTEGER NOT NULL, view_epoch INTEGER, view_slice_bytes_max INTEGER);
CREATE TABLE members (
  job_id INTEGER NOT NULL, position INTEGER NOT NULL, node_rank INTEGER NOT NULL,
  incarnation INTEGER NOT NULL, rank_count INTEGER NOT NULL, name TEXT NOT NULL,
  admin_address TEXT NOT NULL, host_id TEXT NOT NULL, state INTEGER NOT NULL, text TEXT NOT NULL,
  PRIMARY KEY (job_id, position)) WITHOUT ROWID;
CREATE TABLE view_members (
  job_id INTEGER NOT NULL, position INTEGER NOT NULL, node_rank INTEGER NOT NULL,
  incarnation INTEGER NOT NULL, rank_count INTEGER NOT NULL, name TEXT NOT NULL,
  admin_address TEXT NOT NULL, PRIMARY KEY (job_id, position)) WITHOUT ROWID;
CREATE TABLE view_aggregators (
  job_id INTEGER NOT NULL, position INTEGER NOT NULL, incarnation INTEGER NOT NULL,
  name TEXT NOT NULL, weight INTEGER NOT NULL, data_address TEXT NOT NULL, host_id TEXT NOT NULL,
  admin_address TEXT NOT NULL, PRIMARY KEY (job_id, position)) WITHOUT ROWID;
CREATE TABLE aggregators (
  incarnation INTEGER PRIMARY KEY, name TEXT NOT NULL, weight INTEGER NOT NULL,
  data_address TEXT NOT NULL, host_id TEXT NOT NULL, admin_address TEXT NOT NULL,
  state INTEGER NOT NULL, text TEXT NOT NULL);
INSERT INTO counters VALUES ('start_count', 3), ('job_next', 8);
INSERT INTO jobs VALUES (7, 'mnist', 2, 'words', 1, 2, 65536, 2, 600000000000, 5, 99, 5, 65536);
INSERT INTO members VALUES (7, 0, 1, 11, 2, 'node1', 'host:1', 'b', 1, '');
INSERT INTO view_members VALUES (7, 0, 1, 11, 2, 'node1', 'host:1');
INSERT INTO view_aggregators VALUES (7, 0, 100, 'a0', 4, 'fi:a0', 'b', 'host:2');
INSERT INTO aggregators VALUES (100, 'a0', 4, 'fi:a0', 'b', 'host:2', 1, '');
PRAGMA application_id = 0x54616c77;
PRAGMA user_version = 1;
)sql";

TEST_CASE("Store: a store of schema 1 is taken over", "[store]") {
  const TestDirectory directory;
  const std::string path = directory.Path("store");
  Execute(path, kSchema1);
  const view::ViewMember member{.id = {NodeRank{1}, Incarnation{11}},
                                .rank_count = 2,
                                .name = "node1",
                                .admin_address = "host:1"};
  const view::ViewAggregator aggregator{.incarnation = Incarnation{100},
                                        .name = "a0",
                                        .weight = 4,
                                        .data_address = "fi:a0",
                                        .host_id = "b",
                                        .admin_address = "host:2"};
  Snapshot expected;
  expected.start_count = 3;
  expected.job_next = JobId{8};
  expected.jobs.push_back({.id = JobId{7},
                           .name = "mnist",
                           .spec = {.min_members = 1,
                                    .max_members = 2,
                                    .slice_bytes_max = 65536,
                                    .loss_policy = LossPolicy::kContinue,
                                    .join_timeout_ns = 600'000'000'000,
                                    .gather_ns = membership::kDefaultGatherNs},
                           .state = JobState::kRunning,
                           .text = "words",
                           .epoch_floor = Epoch{5},
                           .created_unix_ns = 99,
                           .view = view::View{.job = JobId{7},
                                              .epoch = Epoch{5},
                                              .slice_bytes_max = 65536,
                                              .members = {member},
                                              .aggregators = {aggregator}},
                           .members = {{.member = member, .state = MemberState::kJoined}}});
  // The store keeps what members said when they joined. The view that they hold does not have that.
  expected.jobs[0].members[0].member.host_id = "b";
  expected.aggregators.push_back({.aggregator = aggregator, .state = AggregatorState::kLive});
  Random random(1);
  for (uint64_t life = 1; life <= 3; ++life) {
    const std::unique_ptr<Store> store = Open(path);
    CHECK(LoadOf(*store) == expected);
    // New records have the fields that schema 1 did not have.
    StoreWrite write;
    write.jobs.push_back(RandomJob(random, JobId{life}));
    MustWrite(*store, write);
    membership::Apply(write, expected);
    CHECK(LoadOf(*store) == expected);
  }
}

TEST_CASE("Store: foreign, newer and damaged files are refused", "[store]") {
  const TestDirectory directory;
  const std::string path = directory.Path("store");
  const auto error = [&] {
    const absl::StatusOr<std::unique_ptr<Store>> store = OpenSqliteStore(path);
    if (!store.ok()) return store.status();
    return (*store)->Load().status();
  };
  SECTION("The file is no database") {
    std::ofstream(path) << std::string(8192, 'x');
    CHECK(error().code() == absl::StatusCode::kDataLoss);
  }
  SECTION("The database is another program's") {
    Execute(path, "CREATE TABLE t (x)");
    CHECK(error().code() == absl::StatusCode::kDataLoss);
    CHECK(std::string(error().message()).find("another program") != std::string::npos);
  }
  SECTION("The schema is newer") {
    Open(path).reset();
    Execute(path, "PRAGMA user_version = 9");
    CHECK(error().code() == absl::StatusCode::kFailedPrecondition);
    CHECK(std::string(error().message()).find("schema 9") != std::string::npos);
  }
  SECTION("A state does not exist") {
    std::unique_ptr<Store> store = Open(path);
    StoreWrite write;
    write.jobs.push_back({.id = JobId{1}, .name = "job"});
    MustWrite(*store, write);
    store.reset();
    Execute(path, "UPDATE jobs SET state = 77");
    CHECK(error().code() == absl::StatusCode::kDataLoss);
  }
  SECTION("A dealing does not exist") {
    std::unique_ptr<Store> store = Open(path);
    StoreWrite write;
    write.jobs.push_back({.id = JobId{1}, .name = "job"});
    MustWrite(*store, write);
    store.reset();
    Execute(path, "UPDATE jobs SET dealing = 'cards'");
    CHECK(error().code() == absl::StatusCode::kDataLoss);
    CHECK(std::string(error().message()).find("'cards'") != std::string::npos);
  }
  SECTION("A secret's hash is invalid") {
    std::unique_ptr<Store> store = Open(path);
    StoreWrite write;
    write.aggregators.push_back({.aggregator = {.incarnation = Incarnation{1}, .name = "a0"}});
    MustWrite(*store, write);
    store.reset();
    Execute(path, "UPDATE aggregators SET secret_hash = 'x'");
    CHECK(error().code() == absl::StatusCode::kDataLoss);
  }
  SECTION("Pages are torn") {
    std::unique_ptr<Store> store = Open(path);
    Random random(3);
    for (int i = 0; i < 20; ++i) MustWrite(*store, RandomWrite(random));
    store.reset();
    // Tears all pages except the first.
    const auto bytes = std::filesystem::file_size(path);
    REQUIRE(bytes > 4096);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096);
    file << std::string(bytes - 4096, '\x5a');
    file.close();
    CHECK(error().code() == absl::StatusCode::kDataLoss);
  }
}

}  // namespace
}  // namespace talweg::store
