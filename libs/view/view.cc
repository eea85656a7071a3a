// SPDX-License-Identifier: Apache-2.0
#include "libs/view/view.h"

#include <algorithm>
#include <cstdio>

#include "libs/base/fingerprint.h"

namespace talweg::view {
namespace {

constexpr uint64_t kStandbyMark = 0x7374616e64627900;

}  // namespace

std::string HexText(Incarnation incarnation) {
  char text[8];
  std::snprintf(text, sizeof text, "%x", static_cast<unsigned>(incarnation.value() & 0xffff));
  return text;
}

uint32_t View::RankCount() const {
  uint32_t count = 0;
  for (const ViewMember& member : members) count += member.standby ? 0 : member.rank_count;
  return count;
}

uint32_t View::NumberCount() const {
  uint32_t count = 0;
  for (const ViewMember& member : members) count += member.rank_count;
  return count;
}

bool View::HasStandby() const {
  return std::any_of(members.begin(), members.end(),
                     [](const ViewMember& member) { return member.standby; });
}

Rank View::RankBase(MemberIndex member) const {
  const bool standby = member.value() < members.size() && members[member.value()].standby;
  uint32_t base = standby ? RankCount() : 0;
  for (uint32_t i = 0; i < member.value() && i < members.size(); ++i) {
    if (members[i].standby == standby) base += members[i].rank_count;
  }
  return Rank{base};
}

std::optional<MemberIndex> View::MemberOfRank(Rank rank) const {
  const uint32_t full_count = RankCount();
  const bool standby = rank.value() >= full_count;
  uint32_t base = standby ? full_count : 0;
  for (uint32_t i = 0; i < members.size(); ++i) {
    if (members[i].standby != standby) continue;
    base += members[i].rank_count;
    if (rank.value() < base) return MemberIndex{i};
  }
  return std::nullopt;
}

std::optional<MemberIndex> View::IndexOf(const MemberIdentity& id) const {
  const std::optional<MemberIndex> index = IndexOf(id.node);
  if (!index || members[index->value()].id != id) return std::nullopt;
  return index;
}

std::optional<MemberIndex> View::IndexOf(NodeRank node) const {
  const auto found = std::lower_bound(
      members.begin(), members.end(), node,
      [](const ViewMember& member, NodeRank wanted) { return member.id.node < wanted; });
  if (found == members.end() || found->id.node != node) return std::nullopt;
  return MemberIndex{static_cast<uint32_t>(found - members.begin())};
}

std::optional<AggregatorIndex> View::IndexOfAggregator(Incarnation incarnation) const {
  for (uint32_t i = 0; i < aggregators.size(); ++i) {
    if (aggregators[i].incarnation == incarnation) return AggregatorIndex{i};
  }
  return std::nullopt;
}

uint64_t View::Digest() const {
  uint64_t digest = Fingerprint64(job.value(), epoch.value());
  const auto add = [&digest](uint64_t value) { digest = Fingerprint64(digest, value); };
  add(slice_bytes_max);
  // Older releases know only the default dealing, and their digest has no such part.
  if (dealing != Dealing{}) {
    add(static_cast<uint64_t>(dealing.rule));
    add(dealing.constant);
  }
  add(members.size());
  for (const ViewMember& member : members) {
    add(member.id.node.value());
    add(member.id.incarnation.value());
    add(member.rank_count);
    add(Fingerprint64(member.host_id));
    if (member.standby) add(kStandbyMark);  // Older releases agree on other views.
  }
  add(aggregators.size());
  for (const ViewAggregator& aggregator : aggregators) {
    add(aggregator.incarnation.value());
    add(Fingerprint64(aggregator.name));
    add(aggregator.weight);
    add(Fingerprint64(aggregator.host_id));
  }
  return digest;
}

std::string View::Problem() const {
  if (epoch == Epoch{0}) return "a view needs an epoch of at least 1";
  if (slice_bytes_max < 4 * kKiB || slice_bytes_max % kCacheLineBytes != 0) {
    return "slice_bytes_max is " + std::to_string(slice_bytes_max) +
           "; it must be a multiple of 64 and at least 4096";
  }
  if (!IsValid(dealing)) return "its dealing is not valid: " + DealingText(dealing);
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i].rank_count == 0) {
      return "node " + std::to_string(members[i].id.node.value()) + " has no ranks";
    }
    if (i > 0 && members[i].id.node <= members[i - 1].id.node) {
      return "members are not in ascending order of node rank";
    }
  }
  for (size_t i = 0; i < aggregators.size(); ++i) {
    if (aggregators[i].weight == 0) return "aggregator " + aggregators[i].name + " has weight 0";
    if (i > 0 && aggregators[i].name <= aggregators[i - 1].name) {
      return "aggregators are not in ascending order of name";
    }
  }
  return "";
}

}  // namespace talweg::view
