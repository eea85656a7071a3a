// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_RANK_MARKS_H_
#define TALWEG_CLIENTS_CLI_RANK_MARKS_H_

#include <cstdint>
#include <optional>

#include "clients/cli/plan.h"

namespace talweg::cli {

// What the ranks of a run say of themselves, by files in the run's directory (plan.h has the
// paths). Reads the files each time, and keeps nothing.
class RankMarks {
 public:
  explicit RankMarks(const RunPlan& plan) : plan_(plan) {}

  // Removes what an earlier rank of that place may have left.
  void Remove(uint32_t node, uint32_t local_rank) const;
  // Returns whether all ranks of the node wait for another agent if theirs fails.
  bool AllOutlive(uint32_t node) const;
  // Returns whether a rank of the node has been in the job, and outlives its agent.
  bool AnyHasBegun(uint32_t node) const;
  // Returns whether a rank of the node looks for an agent.
  bool AnyNeedsAgent(uint32_t node) const;
  // Returns since when the rank's program has ended; nullopt: it has not.
  std::optional<int64_t> FailsSince(uint32_t node, uint32_t local_rank) const;
  // Returns with which exit status, which is not 0, the rank's program has ended; nullopt: the rank
  // does not say.
  std::optional<int> FailsWith(uint32_t node, uint32_t local_rank) const;

 private:
  const RunPlan& plan_;
};

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_RANK_MARKS_H_
