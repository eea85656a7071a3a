// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/sim/agent_process.h"

// The ends of the simulated trainers' steps.
namespace talweg::sim {

uint64_t AgentProcess::EndOfStep(const RankProcess& rank) const {
  return std::min((core_.steps_base() + rank.steps + 1) * config_.profile->rounds_per_step,
                  config_.profile->round_count);
}

bool AgentProcess::HasEndedStep(const RankProcess& rank) const {
  bool any = false;
  for (const RankTensor& tensor : rank.tensors) {
    if (!tensor.is_mine || tensor.failed) continue;
    any = true;
    if (tensor.pushed != tensor.taken || tensor.taken.value() < EndOfStep(rank)) return false;
  }
  return any;
}

bool AgentProcess::EndStep(LocalRank local) {
  RankProcess& rank = ranks_[local.value()];
  ++rank.steps;
  if (!stop_ || rank.steps < *stop_) return true;
  rank.at_boundary = true;
  trace_->Reached("a rank waits at the end of a step");
  trace_->Add(timeline_->now_ns(), name_,
              "rank " + std::to_string(local.value()) + " waits after step " +
                  std::to_string(core_.steps_base() + rank.steps));
  Run([&](pipeline::Effects& out) {
    core_.OnRankAtBoundary(local, rank.steps, timeline_->now_ns(), out);
  });
  return false;
}

void AgentProcess::Perform(const pipeline::StopRanks& stop) {
  stop_ = stop.steps;
  std::vector<uint64_t> ended;
  for (uint32_t i = 0; i < ranks_.size(); ++i) {
    ended.push_back(ranks_[i].steps);
    if (!ranks_[i].at_boundary || (stop_ && ranks_[i].steps >= *stop_)) continue;
    ranks_[i].at_boundary = false;
    if (stop_) trace_->Reached("a rank goes on to the step at which all stop");
    timeline_->After(network_->Delay(), [this, i, life = network_->host(host_).life()] {
      network_->host(host_).Deliver(life, [this, i] { PushNext(LocalRank{i}); });
    });
  }
  if (stop_ != 0) return;
  Run([this, ended](pipeline::Effects& out) { core_.OnRanksStop(ended, out); });
}

void AgentProcess::CheckAtBoundary(const View& view) const {
  for (const RankProcess& rank : ranks_) {
    if (rank.state == RankState::kDone || rank.state == RankState::kFailed ||
        rank.state == RankState::kDead) {
      continue;
    }
    const uint64_t steps = core_.steps_base() + rank.steps;
    if (rank.at_boundary && steps == view.steps) continue;
    throw Violation{name_ + ": a joiner enters after step " + std::to_string(view.steps) +
                    ", and a rank " + (rank.at_boundary ? "waits" : "goes on") + " after step " +
                    std::to_string(steps)};
  }
}

}  // namespace talweg::sim
