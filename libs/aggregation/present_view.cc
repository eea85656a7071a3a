// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/present_view.h"

#include <vector>

#include "libs/view/placement.h"

namespace talweg::aggregation {

std::string EpochText(Epoch epoch) { return "epoch " + std::to_string(epoch.value()); }

bool PresentView::IsNext(const view::View& view) const {
  return view.job == job_ && view.epoch > view_.epoch && view.Problem().empty();
}

void PresentView::Set(const view::View& view, const view::Gone& told) {
  std::vector<view::MemberIdentity> gone = told.members;
  for (const view::ViewMember& member : view_.members) {
    if (!view.IndexOf(member.id)) gone.push_back(member.id);
  }
  departed_.Add(gone);
  departed_.Remove(view.members);
  if (told.is_everybody) departed_ = Departed::Everybody();
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
