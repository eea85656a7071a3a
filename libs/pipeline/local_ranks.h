// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_LOCAL_RANKS_H_
#define TALWEG_LIBS_PIPELINE_LOCAL_RANKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "libs/base/ids.h"
#include "libs/pipeline/view_state.h"

namespace talweg::pipeline {

// The ranks of this node: which have joined, and which have left.
//
//   kAbsent --Join--> kJoined --Leave--> kLeft
class LocalRanks {
 public:
  // `views` outlives this.
  LocalRanks(uint32_t count, const ViewState* views) : views_(views), ranks_(count) {}

  // Returns false if the rank has left before: no new process takes its place.
  bool Join(LocalRank rank, uint32_t pid);
  // Returns false if the rank is not here.
  bool Leave(LocalRank rank);

  uint32_t count() const { return static_cast<uint32_t>(ranks_.size()); }
  bool Has(LocalRank rank) const { return rank.value() < ranks_.size(); }
  bool HasLeft(LocalRank rank) const { return ranks_[rank.value()].state == State::kLeft; }
  // Whether all ranks have left. One that has never joined is waited for unless the job has failed.
  bool AreDone() const;
  // "rank 5 (local rank 1 of node 2, pid 77)".
  std::string Text(LocalRank rank) const;

 private:
  enum class State : uint8_t { kAbsent = 1, kJoined = 2, kLeft = 3 };
  struct RankState {
    State state = State::kAbsent;
    uint32_t pid = 0;
  };

  const ViewState* const views_;
  std::vector<RankState> ranks_;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_LOCAL_RANKS_H_
