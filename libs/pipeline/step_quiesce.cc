// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/step_quiesce.h"

#include <algorithm>
#include <memory>

namespace talweg::pipeline {

void StepQuiesce::Ask(uint64_t id, uint64_t step, Effects& out) {
  asked_ = Asked{.id = id, .step = step};
  // `step` counts for the whole job; ranks here have counted since they joined.
  const uint64_t own_steps = step - std::min(step, views_->steps_base());
  out.push_back(StopRanks{own_steps});
  for (std::optional<uint64_t>& ended : at_boundary_) {
    if (ended && *ended < own_steps) ended.reset();
  }
  TryAnswer(out);
}

void StepQuiesce::OnRanksStop(const std::vector<uint64_t>& ended, Effects& out) {
  if (!asked_ || asked_->step != 0 || asked_->is_answered) return;
  uint64_t latest = 0;
  for (uint32_t i = 0; i < ranks_->count() && i < ended.size(); ++i) {
    // A rank that has just ended a step may have begun the next.
    if (!ranks_->HasLeft(LocalRank{i})) latest = std::max(latest, ended[i]);
  }
  asked_->is_answered = true;
  out.push_back(Quiesced{asked_->id, views_->steps_base() + latest + 1});
}

void StepQuiesce::OnRankAtBoundary(LocalRank rank, uint64_t steps, Effects& out) {
  if (!asked_) return;
  at_boundary_[rank.value()] = steps;
  TryAnswer(out);
}

bool StepQuiesce::AllHaveEnded(uint64_t step) const {
  for (uint32_t i = 0; i < ranks_->count(); ++i) {
    if (ranks_->HasLeft(LocalRank{i})) continue;
    const std::optional<uint64_t> ended = StepEndedBy(LocalRank{i});
    if (!ended || *ended < step) return false;
  }
  return true;
}

bool StepQuiesce::LaterStepHasBegun() const {
  for (const std::unique_ptr<AgentTensor>& tensor : tensors_->all()) {
    if (tensor->failed_status != Status::kOk || tensor->spec.collective.side) continue;
    for (uint32_t i = 0; i < ranks_->count(); ++i) {
      if (!ranks_->HasLeft(LocalRank{i}) && tensor->HasGoneOnWithout(LocalRank{i})) return true;
    }
  }
  return false;
}

void StepQuiesce::TryAnswer(Effects& out) {
  if (!asked_ || asked_->is_answered || asked_->step == 0) return;
  if (views_->phase() != Phase::kActive || !AllHaveEnded(asked_->step)) return;
  if (LaterStepHasBegun()) {
    asked_->is_answered = true;
    out.push_back(Quiesced{asked_->id, asked_->step + 1});
    return;
  }
  // Other nodes' ranks may still be on their way to the end of the step.
  for (const std::unique_ptr<AgentTensor>& tensor : tensors_->all()) {
    // A member that enters has no part in existing side tensors, so their rounds may stay open.
    const bool is_open = tensor->pushed_count > 0 || tensor->contributed();
    if ((is_open && !tensor->spec.collective.side) || tensor->finish()) return;
  }
  asked_->is_answered = true;
  out.push_back(Quiesced{asked_->id, asked_->step});
}

void StepQuiesce::OnResume(uint64_t id, Effects& out) {
  if (asked_ && asked_->id == id) LetGo(out);
}

void StepQuiesce::LetGo(Effects& out) {
  if (!asked_) return;
  asked_.reset();
  at_boundary_.assign(at_boundary_.size(), std::nullopt);
  out.push_back(StopRanks{std::nullopt});
}

bool StepQuiesce::AnyRankWaits() const {
  return std::any_of(at_boundary_.begin(), at_boundary_.end(),
                     [](const std::optional<uint64_t>& ended) { return ended.has_value(); });
}

std::optional<uint64_t> StepQuiesce::StepEndedBy(LocalRank rank) const {
  const std::optional<uint64_t>& ended = at_boundary_[rank.value()];
  if (!ended) return std::nullopt;
  return views_->steps_base() + *ended;
}

}  // namespace talweg::pipeline
