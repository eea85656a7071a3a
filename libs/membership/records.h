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

// What the scheduler must not forget: values that the scheduler core gives to the store and takes
// back after a restart. The numbers of enumerators are stored; never reuse one.
namespace talweg::membership {

// What happens to a running job that loses a member or an aggregator of its view.
enum class LossPolicy : uint8_t {
  kFailJob = 1,   // The job fails; every member is told who died.
  kContinue = 2,  // The next view goes on without the lost, as long as min_members remain.
};

// How long a job gathers if its members' release does not know gather_ns.
inline constexpr int64_t kDefaultGatherNs = 30'000'000'000;

// What all members of a job agree on; the first to join sets it.
struct JobSpec {
  uint32_t min_members = 1;  // With fewer the job neither begins nor goes on.
  uint32_t max_members = 1;
  uint32_t begin_members = 0;  // With this many the job begins at once; 0: max_members.
  uint64_t slice_bytes_max = kMiB;
  Dealing dealing = {};
  LossPolicy loss_policy = LossPolicy::kFailJob;
  // A job that has no view this long after its first Join fails.
  int64_t join_timeout_ns = 600'000'000'000;
  // How long a job that has min_members waits for BeginMembers() before it begins.
  int64_t gather_ns = 0;
  // The job's tenant, as its agents say. Empty: they name none. A rule may overrule it.
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

// A hash of the secret that a process has drawn and shows in every later call. Made by rpc::HashOf.
// All zero: in a record of an older release; no process matches it.
struct SecretHash {
  std::array<uint8_t, 32> bytes{};

  friend bool operator==(const SecretHash&, const SecretHash&) = default;
};

// Takes equally long for any two.
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
  Epoch epoch_floor;  // The next epoch lies above it: the last epoch that was given, or reported.
  int64_t created_unix_ns = 0;
  std::optional<view::View> view;
  // Those alive by node rank, then those gone in the order in which they went.
  std::vector<MemberRecord> members;

  friend bool operator==(const JobRecord&, const JobRecord&) = default;
};

enum class AggregatorState : uint8_t {
  kLive = 1,
  kDraining = 2,  // It is taken into no further job.
  kLost = 3,      // Lost or left; its incarnation is not admitted again.
};

struct AggregatorRecord {
  view::ViewAggregator aggregator;
  AggregatorState state = AggregatorState::kLive;
  std::string text;  // Why it is lost.
  SecretHash secret;

  friend bool operator==(const AggregatorRecord&, const AggregatorRecord&) = default;
};

// All records, as a store returns them.
struct Snapshot {
  uint64_t start_count = 0;  // Schedulers that have started on this store.
  JobId job_next{1};         // Job ids below it have been given.
  std::vector<JobRecord> jobs;
  std::vector<AggregatorRecord> aggregators;

  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

// A change of a Snapshot, made in one transaction. A record replaces the one with the same id.
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

// Makes the change, and keeps jobs by id and aggregators by incarnation in ascending order.
void Apply(const StoreWrite& write, Snapshot& snapshot);

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_RECORDS_H_
