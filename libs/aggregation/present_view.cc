// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/present_view.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "libs/view/placement.h"

namespace talweg::aggregation {

std::string EpochText(Epoch epoch) { return "epoch " + std::to_string(epoch.value()); }

bool PresentView::IsNext(const view::View& view) const {
  return view.job == job_ && view.epoch > view_.epoch && view.Problem().empty();
}

void PresentView::Set(const view::View& view) {
  std::vector<view::ViewMember> gone;
  std::set_difference(
      view_.members.begin(), view_.members.end(), view.members.begin(), view.members.end(),
      std::back_inserter(gone),
      [](const view::ViewMember& a, const view::ViewMember& b) { return a.id < b.id; });
  departed_.Add(gone);
  departed_.Remove(view.members);
  view_ = view;
  self_ = view_.IndexOfAggregator(aggregator_);
  placement_digest_ = view::PlacementDigest(view_);
}

std::string PresentView::MemberText(MemberIndex member) const {
  const view::ViewMember& record = view_.members[member.value()];
  return "node " + std::to_string(record.id.node.value()) +
         (record.name.empty() ? "" : " (" + record.name + ")");
}

bool PresentView::Decides(TensorKey key) const { return view::PrimaryOwner(view_, key) == *self_; }

}  // namespace talweg::aggregation
