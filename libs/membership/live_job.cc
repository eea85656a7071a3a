// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/live_job.h"

#include <algorithm>

namespace talweg::membership {

bool LiveJob::Pending(const LiveMember& member) const {
  return state == JobState::kRunning && !view->IndexOf(member.record.member.id);
}

bool LiveJob::MayEnter(const LiveMember& member) const {
  // A running job would wait for ranks that have not attached yet.
  return member.stream.has_value() &&
         (member.ranks.attached.value_or(true) || state == JobState::kForming);
}

bool LiveJob::IsStandby(const LiveMember& member) const {
  if (!view) return false;
  const std::optional<MemberIndex> index = view->IndexOf(member.record.member.id);
  return index && view->members[index->value()].standby;
}

bool LiveJob::MayEnterSteps(const LiveMember& member) const {
  return IsStandby(member) && member.stream && member.ranks.ready.value_or(true);
}

bool LiveJob::HasState(const LiveMember& member) const {
  return state == JobState::kRunning && !Pending(member) && !IsStandby(member) &&
         member.ranks.have_state.value_or(true);
}

std::vector<NodeRank> LiveJob::JoiningNodes() const {
  std::vector<NodeRank> nodes;
  for (const auto& [node, member] : members) {
    const bool enters = Pending(member) && MayEnter(member);
    if (enters || MayEnterSteps(member)) nodes.push_back(node);
  }
  return nodes;
}

bool LiveJob::IsAlive(const view::ViewMember& member) const {
  const auto alive = members.find(member.id.node);
  return alive != members.end() && alive->second.record.member.id == member.id;
}

size_t LiveJob::AliveInView() const {
  return std::count_if(view->members.begin(), view->members.end(),
                       [&](const view::ViewMember& member) { return IsAlive(member); });
}

size_t LiveJob::AliveInSteps() const {
  return std::count_if(
      view->members.begin(), view->members.end(),
      [&](const view::ViewMember& member) { return !member.standby && IsAlive(member); });
}

const MemberRecord* LiveJob::FindGone(const view::MemberIdentity& id) const {
  for (const MemberRecord& record : gone) {
    if (record.member.id == id) return &record;
  }
  return nullptr;
}

void LiveJob::ForgetOldest() {
  if (gone.size() <= kGoneMax) return;
  const auto oldest = std::find_if(gone.begin(), gone.end(), [&](const MemberRecord& record) {
    return !view || !view->IndexOf(record.member.id);
  });
  if (oldest != gone.end()) gone.erase(oldest);
}

view::Gone LiveJob::GoneFromView() const {
  view::Gone out{.is_everybody = gone.size() >= kGoneMax};
  for (const MemberRecord& record : gone) {
    if (!view->IndexOf(record.member.id)) out.members.push_back(record.member.id);
  }
  return out;
}

JobRecord LiveJob::Record() const {
  JobRecord record{.id = id,
                   .name = name,
                   .spec = spec,
                   .state = state,
                   .text = text,
                   .epoch_floor = epoch_floor,
                   .created_unix_ns = created_unix_ns,
                   .view = view ? std::optional(*view) : std::nullopt};
  for (const auto& [node, member] : members) record.members.push_back(member.record);
  record.members.insert(record.members.end(), gone.begin(), gone.end());
  return record;
}

}  // namespace talweg::membership
