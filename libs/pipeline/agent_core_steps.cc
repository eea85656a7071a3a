// SPDX-License-Identifier: Apache-2.0
// The ends of steps, where joiners enter and ranks take the numbers of a new view.
#include <algorithm>

#include "libs/pipeline/agent_core.h"

namespace talweg::pipeline {

void AgentCore::OnQuiesce(uint64_t id, uint64_t step, int64_t /*now_ns*/, Effects& out) {
  if (phase_ == Phase::kFailed) return;
  quiesce_ = QuiesceAsked{.id = id, .step = step};
  // A step is of all ranks of the job; ranks here have counted since they came.
  const uint64_t own_steps = step - std::min(step, steps_base_);
  out.push_back(StopRanks{own_steps});
  for (LocalRankState& rank : ranks_) {
    if (rank.at_boundary && *rank.at_boundary < own_steps) rank.at_boundary.reset();
  }
  TryQuiesce(out);
}

void AgentCore::OnRanksStop(const std::vector<uint64_t>& ended, Effects& out) {
  if (!quiesce_ || quiesce_->step != 0 || quiesce_->answered) return;
  uint64_t latest = 0;
  for (size_t i = 0; i < ranks_.size() && i < ended.size(); ++i) {
    // Who has just ended one may have begun the next.
    if (!ranks_[i].left) latest = std::max(latest, ended[i]);
  }
  quiesce_->answered = true;
  out.push_back(Quiesced{quiesce_->id, steps_base_ + latest + 1});
}

void AgentCore::OnResume(uint64_t id, int64_t /*now_ns*/, Effects& out) {
  if (quiesce_ && quiesce_->id == id) LetRanksGo(out);
}

bool AgentCore::AllHaveEnded(uint64_t step) const {
  return std::all_of(ranks_.begin(), ranks_.end(), [&](const LocalRankState& rank) {
    return rank.left || (rank.at_boundary && steps_base_ + *rank.at_boundary >= step);
  });
}

void AgentCore::TryQuiesce(Effects& out) {
  if (!quiesce_ || quiesce_->answered || quiesce_->step == 0 || phase_ != Phase::kActive) return;
  if (!AllHaveEnded(quiesce_->step)) return;
  // Other nodes' ranks may still be on their way to the end of the step.
  for (const std::unique_ptr<AgentTensor>& tensor : tensors_) {
    // Whoever enters is in no side tensor that there is, so that its rounds may be open.
    if ((tensor->pushed_count > 0 && !tensor->spec.collective.side) || tensor->finish) return;
  }
  quiesce_->answered = true;
  out.push_back(Quiesced{quiesce_->id, quiesce_->step});
}

void AgentCore::LetRanksGo(Effects& out) {
  if (!quiesce_) return;
  quiesce_.reset();
  for (LocalRankState& rank : ranks_) rank.at_boundary.reset();
  out.push_back(StopRanks{std::nullopt});
}

const view::View* AgentCore::FindView(Epoch epoch) const {
  const auto known = std::find_if(recent_views_.begin(), recent_views_.end(),
                                  [epoch](const view::View& view) { return view.epoch == epoch; });
  return known == recent_views_.end() ? nullptr : &*known;
}

bool AgentCore::OnRanksFollow(Epoch epoch, Effects& out) {
  const view::View* const view = FindView(epoch);
  if (view == nullptr || phase_ == Phase::kFailed) return false;
  if (numbers_->epoch == epoch) return true;
  // What was declared keeps its places; only what ranks call them changes.
  for (const std::unique_ptr<AgentTensor>& tensor : tensors_) {
    if (tensor->state != TensorState::kFailed) Resolve(*tensor, out);
  }
  numbers_ = *view;
  for (const std::unique_ptr<AgentTensor>& tensor : tensors_) {
    if (tensor->resolved) Renumber(*tensor);
  }
  return true;
}

// Numbers of ranks that are gone are no rank's.
void AgentCore::Renumber(AgentTensor& tensor) const {
  uint32_t gone = wire::kNoRank - static_cast<uint32_t>(tensor.group.size()) - 1;
  const auto number_of = [&](const view::Place& place) {
    const std::optional<MemberIndex> member = numbers_->IndexOf(place.node);
    return member ? Rank{numbers_->RankBase(*member).value() + place.local_rank.value()}
                  : Rank{gone++};
  };
  for (size_t i = 0; i < tensor.group.size(); ++i)
    tensor.spec.ranks[i] = number_of(tensor.group[i]);
  // Standbys have the highest numbers, whatever their places.
  std::sort(tensor.spec.ranks.begin(), tensor.spec.ranks.end());
  if (!tensor.spec.collective.has_root()) return;
  tensor.spec.root_rank = numbers_->IndexOf(tensor.root_member)
                              ? number_of({tensor.root_member.node, tensor.root_local_rank}).value()
                              : wire::kNoRank - 1;
}

}  // namespace talweg::pipeline
