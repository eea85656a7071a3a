// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_PROFILE_H_
#define TALWEG_TESTS_SIM_PROFILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "libs/aggregation/result_queue.h"
#include "libs/base/bytes.h"
#include "libs/base/collective.h"
#include "libs/base/dealing.h"
#include "libs/base/dtype.h"
#include "libs/base/random.h"
#include "libs/membership/records.h"
#include "libs/view/participation.h"

namespace talweg::sim {

struct TensorProfile {
  uint64_t bytes = 0;  // What a part has, at most.
  Op op = Op::kSum;
  Share gives = Share::kWhole;
  Share gets = Share::kWhole;
  view::Group group;  // Empty: all ranks that there are when the tensor is first declared.
  // Each round has lengths of its own; or signatures; or, so often, a rank that calls something
  // else (0: never).
  bool lengths_vary = false;
  bool is_signed = false;
  uint64_t odd_one_in = 0;
  // One rank of the job declares another length: everybody must get an error.
  bool mismatch = false;
  uint32_t root_rank = 0;  // Perhaps of a rank that is not there (yet).

  Collective collective() const { return {DType::kF32, op, gives, gets, bytes / 4}; }
};

// What one life is like. Drawn from its seed.
struct Profile {
  std::vector<uint32_t> rank_counts;  // By node, of each job.
  bool members_first = false;         // They wait for an aggregator, and begin together.
  uint32_t job_count = 1;
  uint32_t aggregator_count = 1;
  uint32_t min_members = 1;
  uint32_t begin_members = 0;  // 0: all nodes.
  int64_t gather_ns = 0;
  membership::LossPolicy loss_policy = membership::LossPolicy::kContinue;
  uint64_t slice_bytes_max = 4096;
  Dealing dealing;
  uint64_t credit_bytes = 64 * kKiB;
  // So much is under way before results wait for their turn, by priority.
  uint64_t results_window_bytes = aggregation::ResultQueue::kNoWindow;
  std::vector<TensorProfile> tensors;
  // Which host each is on: equal names are one host, and nobody knows that of "". Empty: each has
  // one to itself. Who is started again may be on another one.
  std::vector<std::string> node_hosts;
  std::vector<std::string> aggregator_hosts;
  bool has_groups = false;  // Ranks agree beforehand on who takes part, and on roots, by place.
  uint64_t round_count = 3;
  uint64_t rounds_per_step = 1;  // That a step has, of every tensor; the last may have fewer.
  bool members_prove = false;    // With tokens, as over libfabric, who they are when they connect.
  bool standbys = false;         // Joiners may be in the view before they are in the steps.
  bool in_steps = true;          // A rank waits for all tensors of a round before the next one.

  uint64_t straggler_one_in = 0;  // So often a rank takes seconds for a step; 0: never.

  int64_t delay_max_ns = 2'000'000;
  int64_t fault_gap_ns = 0;  // Mean time between faults; 0: none.
  int64_t fault_start_ns = 0;
  int64_t fault_end_ns = 0;  // No faults from then on.
  uint32_t rpc_loss_percent = 0;
  uint64_t aggregator_memory_bytes = 1 << 30;
  // What a rule of the scheduler lets the job, or its tenant, place at an aggregator; 0: no rule.
  uint64_t place_bytes_max = 0;
  bool rule_is_of_tenant = false;
  bool agent_memory_is_short = false;
  int64_t history_ns = 600'000'000'000;   // How long the scheduler remembers a job that is over.
  uint32_t fault_weights[18] = {};        // By Fault.
  uint64_t older_store_one_in = 3;        // So often a scheduler that restarts finds one.
  bool older_stores_revive = false;       // Also one that brings back a job which is over.
  int64_t unreachable_ns = 0;             // How long an agent waits for the dead; 0: for ever.
  bool aggregators_die_together = false;  // Each when some may have its results and others not.
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
  kConfuseAgent =
      10,  // It sends a contribution that is none, an old one again, or no frame at all.
  kLeave = 11,
  kDrainAggregator = 12,
  kHalfBreakLink = 13,  // One end notices much later than the other.
  kStallLink = 14,      // In one direction.
  kConfuseRank = 15,    // It pushes what it may not.
  kForge = 16,          // An agent hears what no aggregator of ours says.
  kLoseScheduler = 17,  // For long, or for good, with what it has just said.
};
inline constexpr int kFaultCount = 18;
const char* FaultName(Fault fault);

// What the lives of one row of seeds have in common.
enum class Kind : uint8_t {
  kUsual,     // A bit of everything that there is.
  kRecovery,  // Views upon views with rounds open: what is rare elsewhere is usual here.
  kSilent,    // The scheduler goes, and members die that it would have missed.
  kGroups,    // As one of those, with every collective, over groups of ranks.
  kHosts,     // As kGroups, with aggregators beside the ranks that parts belong to.
  kStandbys,  // As one of those, with joiners that take over state first.
};

inline constexpr Kind kKinds[] = {Kind::kUsual,  Kind::kRecovery, Kind::kSilent,
                                  Kind::kGroups, Kind::kHosts,    Kind::kStandbys};
const char* KindName(Kind kind);

Profile DrawProfile(Kind kind, Random& random);

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_PROFILE_H_
