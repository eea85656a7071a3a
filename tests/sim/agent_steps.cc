// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/sim/agent_process.h"

// The ends of the simulated trainers' steps.
namespace talweg::sim {

uint64_t AgentProcess::EndOfStep(const RankProcess& rank) const {
  return std::min((core().views().steps_base() + rank.steps + 1) * config_.profile->rounds_per_step,
                  config_.profile->round_count);
}

bool AgentProcess::HasEndedStep(const RankProcess& rank) const {
  bool any = false;
  for (size_t i = 0; i < rank.tensors.size(); ++i) {
    const RankTensor& tensor = rank.tensors[i];
    if (!tensor.is_mine || tensor.failed) continue;
    any = true;
    if (tensor.pushed != tensor.taken) return false;
    if (!IsReduction(i) && Progress(rank, i) < EndOfStep(rank)) return false;
  }
  return any;
}

bool AgentProcess::EndStep(LocalRank local) {
  RankProcess& rank = ranks_[local.value()];
  ++rank.steps;
  if (rank.stop_at == 0 || rank.steps + 1 < rank.stop_at) return true;
  rank.at_boundary = true;
  trace_->Reached("a rank waits at the end of a step");
  trace_->Add(timeline_->now_ns(), name_,
              "rank " + std::to_string(local.value()) + " waits after step " +
                  std::to_string(core().views().steps_base() + rank.steps));
  Ask(local, shm::BoundaryQuestion::kWait, rank.steps, Epoch{0});
  return false;
}

void AgentProcess::Ask(LocalRank local, shm::BoundaryQuestion question, uint64_t steps,
                       Epoch epoch) {
  rank_server_.Say(local, [=](shm::RankEventSink& sink, shm::RankConnectionId connection) {
    sink.OnRankBoundary(connection, shm::RequestId{static_cast<uint32_t>(question)},
                        {.question = question, .steps_ended = steps, .epoch = epoch.value()});
  });
}

uint64_t AgentProcess::OnStopPublished(LocalRank local, uint64_t stop_at) {
  RankProcess& rank = ranks_[local.value()];
  rank.stop_at = stop_at;
  return rank.steps;
}

void AgentProcess::OnMembership(LocalRank local, uint32_t request,
                                const shm::RankMembership& answer) {
  RankProcess& rank = ranks_[local.value()];
  if (request == static_cast<uint32_t>(shm::BoundaryQuestion::kFollow)) {
    const bool follows = answer.status == shm::RankStatus::kOk;
    return Later(network_->Delay(),
                 [this, follows, epoch = Epoch{answer.epoch}] { OnFollowed(follows, epoch); });
  }
  if (request != static_cast<uint32_t>(shm::BoundaryQuestion::kWait) || !rank.at_boundary) return;
  rank.at_boundary = false;
  if (rank.stop_at != 0) trace_->Reached("a rank goes on to the step at which all stop");
  Later(network_->Delay(), [this, local] { PushNext(local); });
}

void AgentProcess::CheckAtBoundary(const view::View& view) const {
  for (const RankProcess& rank : ranks_) {
    if (rank.state == RankState::kDone || rank.state == RankState::kFailed ||
        rank.state == RankState::kDead) {
      continue;
    }
    const uint64_t steps = core().views().steps_base() + rank.steps;
    if (rank.at_boundary && steps == view.steps) continue;
    throw Violation{name_ + ": a joiner enters after step " + std::to_string(view.steps) +
                    ", but a rank " + (rank.at_boundary ? "waits" : "goes on") + " after step " +
                    std::to_string(steps)};
  }
}

}  // namespace talweg::sim
