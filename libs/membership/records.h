// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_RECORDS_H_
#define TALWEG_LIBS_MEMBERSHIP_RECORDS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "libs/base/bytes.h"
#include "libs/base/ids.h"
#include "libs/view/view.h"

// What the scheduler must not forget: values that the scheduler core hands out to be stored and
// takes back after a restart. The numbers of enumerators are stored; never reuse one.
namespace talweg::membership {

// What happens to a running job when a member or an aggregator of its view is lost.
enum class LossPolicy : uint8_t {
  kFailJob = 1,   // The job fails; every member is told who died.
  kContinue = 2,  // The next view goes on without the lost, as long as min_members remain.
};

// How long a job gathers whose members are of a release that knew no such wait.
inline constexpr int64_t kDefaultGatherNs = 30'000'000'000;

// What all members of a job agree on; the first to join sets it.
struct JobSpec {
  uint32_t min_members = 1;  // With fewer it neither begins nor goes on.
  uint32_t max_members = 1;
  uint32_t begin_members = 0;  // With so many it begins at once; 0: with max_members.
  uint64_t slice_bytes_max = kMiB;
  Dealing dealing = {};
  LossPolicy loss_policy = LossPolicy::kFailJob;
  // A job without a view so long after its first Join fails.
  int64_t join_timeout_ns = 600'000'000'000;
  // How long a job that has min_members waits for BeginMembers() before it begins.
  int64_t gather_ns = 0;
  // Whose job it is, as its agents say. Empty: they say none. A rule may know better.
  std::string tenant = {};

  uint32_t BeginMembers() const { return begin_members == 0 ? max_members : begin_members; }

  friend bool operator==(const JobSpec&, const JobSpec&) = default;
};

enum class JobState : uint8_t {
  kForming = 1,   // No view yet.
  kRunning = 2,   // Has a view.
  kFailed = 3,    // Over: a loss, or the join deadline.
  kFinished = 4,  // Over: all members have left.
};

enum class MemberState : uint8_t {
  kJoined = 1,  // Alive as far as is known; in the view or waiting to enter it.
  kLost = 2,
  kLeft = 3,
};

// What is kept of the secret that a process has drawn: every later call of that process shows the
// same one. Made by rpc::HashOf. All zero: of a record that an older release has written, which
// nobody matches.
struct SecretHash {
  std::array<uint8_t, 32> bytes{};

  friend bool operator==(const SecretHash&, const SecretHash&) = default;
};

// Takes as long for any two.
bool SameSecret(const SecretHash& a, const SecretHash& b);

struct MemberRecord {
  view::ViewMember member;
  MemberState state = MemberState::kJoined;
  std::string text;  // Why it is lost or has left.
  SecretHash secret;

  friend bool operator==(const MemberRecord&, const MemberRecord&) = default;
};

struct JobRecord {
  JobId id;
  std::string name;
  JobSpec spec;
  JobState state = JobState::kForming;
  std::string text;   // Why it is over.
  Epoch epoch_floor;  // The next epoch lies above it: the last one given, or reported.
  int64_t created_unix_ns = 0;
  std::optional<view::View> view;
  // Those alive by node rank, then those that are gone in the order of their going.
  std::vector<MemberRecord> members;

  friend bool operator==(const JobRecord&, const JobRecord&) = default;
};

enum class AggregatorState : uint8_t {
  kLive = 1,
  kDraining = 2,  // Taken into no further job.
  kLost = 3,      // Lost or left; its incarnation is not let in again.
};

struct AggregatorRecord {
  view::ViewAggregator aggregator;
  AggregatorState state = AggregatorState::kLive;
  std::string text;  // Why it is lost.
  SecretHash secret;

  friend bool operator==(const AggregatorRecord&, const AggregatorRecord&) = default;
};

// All of it, as a store gives it back.
struct Snapshot {
  uint64_t start_count = 0;  // Schedulers that have started on this store.
  JobId job_next{1};         // Job ids below it have been given.
  std::vector<JobRecord> jobs;
  std::vector<AggregatorRecord> aggregators;

  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

// A change of it, to be made in one transaction. A record replaces the one of the same id.
struct StoreWrite {
  std::optional<uint64_t> start_count;
  std::optional<JobId> job_next;
  std::vector<JobRecord> jobs;
  std::vector<JobId> jobs_removed;
  std::vector<AggregatorRecord> aggregators;  // By incarnation.
  std::vector<Incarnation> aggregators_removed;

  bool empty() const {
    return !start_count && !job_next && jobs.empty() && jobs_removed.empty() &&
           aggregators.empty() && aggregators_removed.empty();
  }
  friend bool operator==(const StoreWrite&, const StoreWrite&) = default;
};

// Makes the change, keeping jobs by id and aggregators by incarnation in ascending order.
void Apply(const StoreWrite& write, Snapshot& snapshot);

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_RECORDS_H_
