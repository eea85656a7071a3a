// SPDX-License-Identifier: Apache-2.0
#include "libs/view/participation.h"

#include <algorithm>

#include "libs/base/check.h"
#include "libs/base/counted.h"

namespace talweg::view {
namespace {

constexpr size_t kPlacesShown = 8;

// A number that no rank of a group has.
constexpr uint32_t kNobody = 0xffffffff;

}  // namespace

std::string Describe(const Group& group) {
  if (group.empty()) return "all ranks";
  std::string text = Counted(group.size(), "rank") + " (";
  for (size_t i = 0; i < group.size() && i < kPlacesShown; ++i) {
    if (i > 0) text += ", ";
    text +=
        std::to_string(group[i].node.value()) + "." + std::to_string(group[i].local_rank.value());
  }
  return text + (group.size() > kPlacesShown ? ", ...)" : ")");
}

Participation::Participation(const View& view, const Collective& collective, const Group& group,
                             std::optional<Place> root)
    : collective_(collective), root_(kNobody), ranks_of_(view.members.size()) {
  TALWEG_CHECK(!group.empty() || !collective.needs_every_rank());
  bool is_whole = true;
  const auto add = [&](const Place& place, uint32_t number, std::optional<MemberIndex> member) {
    if (root && *root == place) root_ = number;
    if (member && place.local_rank.value() < view.members[member->value()].rank_count) {
      ranks_of_[member->value()].push_back({number, place.local_rank});
    } else {
      is_whole = false;
      if (root && *root == place) root_ = kNobody;
    }
  };
  if (group.empty()) {
    for (uint32_t m = 0; m < view.members.size(); ++m) {
      if (view.members[m].standby) continue;
      for (uint32_t i = 0; i < view.members[m].rank_count; ++i) {
        add({view.members[m].id.node, LocalRank{i}}, rank_count_++, MemberIndex{m});
      }
    }
  } else {
    for (const Place& place : group) {
      const std::optional<MemberIndex> member = view.IndexOf(place.node);
      const bool is_out = member && !collective.side && view.members[member->value()].standby;
      add(place, rank_count_++, is_out ? std::nullopt : member);
    }
  }
  for (const std::vector<LocalPart>& ranks : ranks_of_) member_count_ += ranks.empty() ? 0 : 1;
  is_possible_ = member_count_ > 0 && (is_whole || !collective.ends_with_any_rank()) &&
                 (root_ != kNobody || !collective.has_root());
}

uint32_t Participation::GivingRanks(MemberIndex member, uint32_t part) const {
  const std::vector<LocalPart>& ranks = ranks_of_[member.value()];
  if (!collective_.copies()) return static_cast<uint32_t>(ranks.size());
  return static_cast<uint32_t>(std::count_if(
      ranks.begin(), ranks.end(), [&](const LocalPart& rank) { return Gives(rank, part); }));
}

bool Participation::Gets(MemberIndex member, uint32_t part) const {
  const std::vector<LocalPart>& ranks = ranks_of_[member.value()];
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](const LocalPart& rank) { return Gets(rank, part); });
}

bool Participation::TakesPart(MemberIndex member, uint32_t part) const {
  const std::vector<LocalPart>& ranks = ranks_of_[member.value()];
  if (!collective_.is_pairwise()) return !ranks.empty();
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](const LocalPart& rank) { return Gives(rank, part) || Gets(rank, part); });
}

uint32_t Participation::TakerCount(uint32_t part) const {
  if (!collective_.is_pairwise()) return member_count_;
  uint32_t count = 0;
  for (uint32_t m = 0; m < ranks_of_.size(); ++m) count += TakesPart(MemberIndex{m}, part) ? 1 : 0;
  return count;
}

std::optional<MemberIndex> Participation::Source(uint32_t part) const {
  TALWEG_CHECK(collective_.copies());
  for (uint32_t m = 0; m < ranks_of_.size(); ++m) {
    if (GivingRanks(MemberIndex{m}, part) > 0) return MemberIndex{m};
  }
  return std::nullopt;
}

}  // namespace talweg::view
