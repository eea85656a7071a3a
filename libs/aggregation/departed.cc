// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/departed.h"

#include <algorithm>

namespace talweg::aggregation {

Departed Departed::Everybody() {
  Departed everybody;
  everybody.is_everybody_ = true;
  return everybody;
}

void Departed::Add(const std::vector<view::MemberIdentity>& members) {
  if (is_everybody_) return;
  for (const view::MemberIdentity& member : members) {
    const auto place = std::lower_bound(members_.begin(), members_.end(), member);
    if (place == members_.end() || *place != member) members_.insert(place, member);
  }
  if (members_.size() > kMembersMax) *this = Everybody();
}

void Departed::Add(const std::vector<view::ViewMember>& members) {
  std::vector<view::MemberIdentity> identities;
  for (const view::ViewMember& member : members) identities.push_back(member.id);
  Add(identities);
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
