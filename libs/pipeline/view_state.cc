// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/view_state.h"

#include <algorithm>
#include <utility>

#include "libs/base/check.h"
#include "libs/base/counted.h"
#include "libs/wire/frames.h"

namespace talweg::pipeline {
namespace {

// Ranks agree on one of these views at the end of a step. Views rarely follow one another faster.
constexpr size_t kRecentViews = 16;

}  // namespace

const char* PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kForming: return "forming";
    case Phase::kFencing: return "fencing";
    case Phase::kReporting: return "reporting";
    case Phase::kActive: return "active";
    case Phase::kFailed: return "failed";
  }
  return "unknown";
}

bool IsStandbyIn(const view::View& view, const view::MemberIdentity& member) {
  const std::optional<MemberIndex> index = view.IndexOf(member);
  return index && view.members[index->value()].standby;
}

std::string ViewState::Problem(const view::View& view) const {
  if (const std::string problem = view.Problem(); !problem.empty()) return problem;
  if (newest() != nullptr && newest()->job != view.job) {
    return "it is of job " + std::to_string(view.job.value()) + ", this agent serves job " +
           std::to_string(newest()->job.value());
  }
  if (view.members.size() > 1 && view.aggregators.empty()) {
    return "it has " + Counted(view.members.size(), "member") +
           " and no aggregator; start at least one";
  }
  const std::optional<MemberIndex> self = view.IndexOf(self_id_);
  if (self && view.members[self->value()].rank_count != rank_count_) {
    return "it says that node " + std::to_string(self_id_.node.value()) + " has " +
           Counted(view.members[self->value()].rank_count, "rank") + ", but it has " +
           std::to_string(rank_count_);
  }
  return "";
}

bool ViewState::IsNewer(const view::View& view) const {
  return newest() == nullptr || view.epoch > newest()->epoch;
}

void ViewState::Enter(const view::View& view) {
  TALWEG_CHECK(phase_ != Phase::kFailed && view.IndexOf(self_id_));
  const bool enters_steps =
      newest() != nullptr && IsStandbyIn(*newest(), self_id_) && !IsStandbyIn(view, self_id_);
  if (!numbers_ || enters_steps) steps_base_ = view.steps;
  if (!numbers_) numbers_ = view;
  if (recent_views_.size() == kRecentViews) recent_views_.pop_front();
  recent_views_.push_back(view);
  next_view_ = view;
  phase_ = Phase::kFencing;
}

void ViewState::Freeze() {
  TALWEG_CHECK(phase_ == Phase::kFencing);
  view_ = std::exchange(next_view_, std::nullopt);
  self_ = *view_->IndexOf(self_id_);
  phase_ = Phase::kReporting;
}

void ViewState::Activate() {
  if (phase_ == Phase::kReporting) phase_ = Phase::kActive;
}

void ViewState::Fail(const std::string& text) {
  phase_ = Phase::kFailed;
  failed_text_ = text;
}

const view::View* ViewState::Find(Epoch epoch) const {
  const auto known = std::find_if(recent_views_.begin(), recent_views_.end(),
                                  [epoch](const view::View& view) { return view.epoch == epoch; });
  return known == recent_views_.end() ? nullptr : &*known;
}

bool ViewState::standalone() const {
  return view_ && view_->members.size() == 1 && view_->aggregators.empty();
}

bool ViewState::IsEveryRank(const std::vector<Rank>& ranks) const {
  return ranks.empty() || !view_ || ranks.size() == view_->RankCount();
}

Rank ViewState::GlobalRank(LocalRank rank) const {
  if (!numbers_) return Rank{rank.value()};
  const MemberIndex self = *numbers_->IndexOf(self_id_);
  return Rank{numbers_->RankBase(self).value() + rank.value()};
}

uint32_t ViewState::RootInView(uint32_t root_rank) const {
  const std::optional<MemberIndex> told = numbers_->MemberOfRank(Rank{root_rank});
  // A number that no rank has, so that the others hear of the error.
  if (!told) return std::max(std::min(root_rank, wire::kNoRank - 1), view_->NumberCount());
  const std::optional<MemberIndex> member = view_->IndexOf(numbers_->members[told->value()].id);
  if (!member) return wire::kNoRank;
  return view_->RankBase(*member).value() + root_rank - numbers_->RankBase(*told).value();
}

}  // namespace talweg::pipeline
