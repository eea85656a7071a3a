// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/local_ranks.h"

#include <algorithm>

namespace talweg::pipeline {

bool LocalRanks::Join(LocalRank rank, uint32_t pid) {
  RankState& state = ranks_[rank.value()];
  if (state.state == State::kLeft) return false;
  state = {.state = State::kJoined, .pid = pid};
  return true;
}

bool LocalRanks::Leave(LocalRank rank) {
  if (!Has(rank) || ranks_[rank.value()].state != State::kJoined) return false;
  ranks_[rank.value()].state = State::kLeft;
  return true;
}

bool LocalRanks::AreDone() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [this](const RankState& rank) {
    return rank.state == State::kLeft || (rank.state == State::kAbsent && views_->has_failed());
  });
}

std::string LocalRanks::Text(LocalRank rank) const {
  std::string text = "rank " + std::to_string(views_->GlobalRank(rank).value()) + " (local rank " +
                     std::to_string(rank.value()) + " of node " +
                     std::to_string(views_->self_id().node.value());
  if (Has(rank) && ranks_[rank.value()].pid != 0) {
    text += ", pid " + std::to_string(ranks_[rank.value()].pid);
  }
  return text + ")";
}

}  // namespace talweg::pipeline
