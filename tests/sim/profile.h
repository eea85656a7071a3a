// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_PROFILE_H_
#define TALWEG_TESTS_SIM_PROFILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "libs/aggregation/result_queue.h"
#include "libs/base/bytes.h"
#include "libs/base/collective.h"
#include "libs/base/dealing.h"
#include "libs/base/dtype.h"
#include "libs/base/encoding.h"
#include "libs/base/random.h"
#include "libs/membership/records.h"
#include "libs/view/participation.h"
#include "tests/sim/network.h"

namespace talweg::sim {

struct TensorProfile {
  uint64_t bytes = 0;  // The most bytes of a part.
  Op op = Op::kSum;
  Share gives = Share::kWhole;
  Share gets = Share::kWhole;
  view::Group group;  // Empty: all ranks at the time of the tensor's first declaration.
  // Each round has lengths of its own; or signatures; or, so often, a rank that makes another call
  // (0: never).
  bool lengths_vary = false;
  bool is_signed = false;
  uint64_t odd_one_in = 0;
  // One rank of the job declares another length: everybody must get an error.
  bool mismatch = false;
  uint32_t root_rank = 0;  // Perhaps of a rank that does not exist, or not yet.

  Encoding encoding = Encoding::kPlain;
  uint16_t patience_ms = 0;
  // If the calls of this all_gather go on when a rank is lost: the place of the tensor through
  // which they do. 0: they do not.
  size_t goes_on_by = 0;
  bool is_of_survivors = false;  // It is such a tensor.

  Collective collective() const {
    return {DType::kF32, op, gives, gets, bytes / 4, false, encoding, patience_ms};
  }
};

// The properties of one life, drawn from its seed.
struct Profile {
  std::vector<uint32_t> rank_counts;  // By node, of each job.
  bool members_first = false;         // Members wait for an aggregator, and begin together.
  uint32_t job_count = 1;
  uint32_t aggregator_count = 1;
  uint32_t lane_count = 1;  // How many aggregators one process has, which come and go together.
  uint32_t min_members = 1;
  uint32_t begin_members = 0;  // 0: all nodes.
  int64_t gather_ns = 0;
  membership::LossPolicy loss_policy = membership::LossPolicy::kContinue;
  uint64_t slice_bytes_max = 4096;
  Dealing dealing;
  uint64_t credit_bytes = 64 * kKiB;
  // When so many bytes of results are under way, further results wait, ordered by priority.
  uint64_t results_window_bytes = aggregation::ResultQueue::kNoWindow;
  std::vector<TensorProfile> tensors;
  // The host of each: equal names are one host, and "" is an unknown host. Empty: each has its own
  // host. A process that is started again may be on another host.
  std::vector<std::string> node_hosts;
  std::vector<std::string> aggregator_hosts;
  bool has_groups = false;  // Ranks agree beforehand on who takes part, and on roots, by place.
  uint64_t round_count = 3;
  uint64_t rounds_per_step = 1;  // That a step has, of every tensor; the last may have fewer.
  // Members prove their identity with tokens when they connect, as over libfabric.
  bool members_prove = false;
  bool standbys = false;  // Joiners may be in the view before they are in the steps.
  bool in_steps = true;   // A rank waits for all tensors of a round before the next one.

  uint64_t straggler_one_in = 0;  // One step in so many takes a rank seconds; 0: none.
  int64_t time_limit_ns = 0;      // How long a rank waits before it gets an error; 0: for ever.

  int64_t delay_max_ns = 2'000'000;
  int64_t fault_gap_ns = 0;  // Mean time between faults; 0: none.
  int64_t fault_start_ns = 0;
  int64_t fault_end_ns = 0;  // No faults from then on.
  uint32_t rpc_loss_percent = 0;
  uint64_t aggregator_memory_bytes = 1 << 30;
  // How much a quota lets the job, or its tenant, place at an aggregator; 0: no quota.
  uint64_t place_bytes_max = 0;
  bool rule_is_of_tenant = false;
  bool agent_memory_is_short = false;
  bool memory_is_late = false;           // A daemon's memory comes a while after it was asked for.
  int64_t history_ns = 600'000'000'000;  // How long the scheduler remembers a job that is over.
  uint32_t fault_weights[18] = {};       // By Fault.
  // One restart of the scheduler in so many finds an older store.
  uint64_t older_store_one_in = 3;
  bool older_stores_revive = false;  // An older store may bring back a job that is over.
  int64_t unreachable_ns = 0;        // How long an agent waits for the dead; 0: for ever.
  std::optional<Severing> severing;  // The only fault of a life.
  // Each dies when some members may have its results and others not.
  bool aggregators_die_together = false;
};

enum class Fault : uint8_t {
  kCrashAgent = 0,
  kCrashAggregator = 1,
  kRestartScheduler = 2,
  kBreakLink = 3,
  kPauseProcess = 4,
  kPartition = 5,
  kKillRank = 6,
  kBreakStream = 7,
  kClockGap = 8,
  kLateJoin = 9,
  kConfuseAgent = 10,  // It sends a bad contribution, an old one again, or bytes that are no frame.
  kLeave = 11,
  kDrainAggregator = 12,
  kHalfBreakLink = 13,  // One end notices much later than the other.
  kStallLink = 14,      // In one direction.
  kConfuseRank = 15,    // A rank pushes something that it must not.
  kForge = 16,          // An agent receives a message that no real aggregator sends.
  kLoseScheduler = 17,  // For long, or for good, with its last messages.
};
inline constexpr int kFaultCount = 18;
const char* FaultName(Fault fault);

// The kind of a range of seeds' lives.
enum class Kind : uint8_t {
  kUsual,     // A bit of everything.
  kRecovery,  // Many views in a row while rounds are open, which is rare in other kinds.
  kSilent,    // The scheduler fails, and members die that it would have noticed.
  kGroups,    // As one of those, with every collective, over groups of ranks.
  kHosts,     // As kGroups, with aggregators beside the ranks that parts belong to.
  kStandbys,  // As one of those, with joiners that take over state first.
  kLate,      // As one of those, and daemons get their memory late.
  kPatience,  // As one of those, and rounds go on without late ranks.
  kHasty,     // As one of those, and ranks' waits have time limits.
  kGathers,   // As kGroups or kHosts, and gathers go on with the ranks that are left.
  kLanes,     // As one of those, and each aggregator daemon has several lanes.
  kSevered,   // A small job, one of whose connections is severed. The seed says where.
};

inline constexpr Kind kKinds[] = {Kind::kUsual, Kind::kRecovery, Kind::kSilent, Kind::kGroups,
                                  Kind::kHosts, Kind::kStandbys, Kind::kLate,   Kind::kPatience,
                                  Kind::kHasty, Kind::kGathers,  Kind::kLanes,  Kind::kSevered};
const char* KindName(Kind kind);

// Returns the seed of the chance in a life. Severed lives are alike until a connection is severed.
inline constexpr uint64_t kSeveredShapes = 8;
inline uint64_t SeedOfChance(Kind kind, uint64_t seed) {
  return kind == Kind::kSevered ? seed % kSeveredShapes : seed;
}
Profile DrawProfile(Kind kind, uint64_t seed, Random& random);

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_PROFILE_H_
