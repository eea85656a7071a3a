// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/departed.h"

#include <algorithm>

namespace talweg::aggregation {

Departed Departed::Everybody() {
  Departed everybody;
  everybody.is_everybody_ = true;
  return everybody;
}

void Departed::Add(const std::vector<view::ViewMember>& members) {
  if (is_everybody_) return;
  for (const view::ViewMember& member : members) {
    const auto place = std::lower_bound(members_.begin(), members_.end(), member.id);
    if (place == members_.end() || *place != member.id) members_.insert(place, member.id);
  }
  if (members_.size() > kMembersMax) *this = Everybody();
}

void Departed::Remove(const std::vector<view::ViewMember>& members) {
  if (members_.empty()) return;
  for (const view::ViewMember& member : members) {
    const auto place = std::lower_bound(members_.begin(), members_.end(), member.id);
    if (place != members_.end() && *place == member.id) members_.erase(place);
  }
}

bool Departed::Has(const view::MemberIdentity& member) const {
  return is_everybody_ || std::binary_search(members_.begin(), members_.end(), member);
}

}  // namespace talweg::aggregation
