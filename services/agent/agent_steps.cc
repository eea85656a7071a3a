// SPDX-License-Identifier: Apache-2.0
// What ranks say of their steps, and which view they follow (docs/elastic.md).
#include <string>
#include <utility>

#include "services/agent/agent.h"

namespace talweg::agent {

void Agent::OnRankFailure(const std::string& text) {
  Deliver([this, text](pipeline::Effects& out) { member_->OnLocalFailure(text, NowNs(), out); });
}

void Agent::OnRankAtBoundary(LocalRank rank, uint64_t steps) {
  Deliver([this, rank, steps](pipeline::Effects& out) {
    member_->OnRankAtBoundary(rank, steps, NowNs(), out);
  });
}

void Agent::OnRanksStop(std::vector<uint64_t> ended) {
  Deliver([this, ended = std::move(ended)](pipeline::Effects& out) {
    member_->OnRanksStop(ended, out);
  });
}

void Agent::OnRankFollows(LocalRank rank, uint32_t request, Epoch epoch) {
  Deliver([this, rank, request, epoch](pipeline::Effects& out) {
    const bool ok = member_->OnRanksFollow(epoch, out);
    desk_->AnswerFollow(rank, request, epoch, ok);
  });
}

}  // namespace talweg::agent
