// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/notices.h"

#include <algorithm>

#include "libs/aggregation/hurry.h"

namespace talweg::aggregation {
namespace {

constexpr size_t kMissingNodesMax = 64;

// 1, 2, 4, ... times `first_ns` after the beginning, then at most `gap_max_ns` apart.
int64_t NextNotice(int64_t since_ns, int64_t last_ns, int64_t first_ns, int64_t gap_max_ns) {
  const int64_t waited_ns = last_ns - since_ns;
  int64_t next_ns = first_ns;
  while (next_ns <= waited_ns && next_ns < gap_max_ns) next_ns *= 2;
  if (next_ns > waited_ns) return since_ns + next_ns;
  return last_ns + gap_max_ns;
}

}  // namespace

std::optional<Wait> WaitOf(const AggregatorTensor& tensor, size_t member_count) {
  if (!tensor.Placed() || tensor.poison) return std::nullopt;
  const auto waits = [](const LocalSlice& slice) {
    return slice.round.state() == SliceRound::State::kFilling && slice.round.here_count() > 0;
  };
  std::optional<Wait> wait;
  for (const LocalSlice& slice : tensor.local) {
    if (!waits(slice)) continue;
    if (!wait || slice.round.open_round() < wait->round) {
      wait = Wait{.round = slice.round.open_round(), .since_ns = slice.round.since_ns()};
    }
  }
  if (!wait) return std::nullopt;
  wait->missing.assign(member_count, false);
  wait->waiting.assign(member_count, false);
  for (const LocalSlice& slice : tensor.local) {
    if (!waits(slice) || slice.round.open_round() != wait->round) continue;
    ++wait->slices;
    wait->since_ns = std::min(wait->since_ns, slice.round.since_ns());
    for (uint32_t i = 0; i < member_count; ++i) {
      if (!tensor.participation.TakesPart(MemberIndex{i}, slice.part)) continue;
      (slice.round.parts()[i].here ? wait->waiting : wait->missing)[i] = true;
    }
  }
  return wait;
}

void Notices::OnView(int64_t now_ns) {
  view_since_ns_ = now_ns;
  last_epoch_notice_ns_ = now_ns;
  told_.clear();
}

void Notices::OnTick(int64_t now_ns, Effects& out) {
  NoticeEpoch(now_ns, out);
  if (none_waits_) return;
  none_waits_ = true;
  for (const auto& [key, tensor] : *tensors_) none_waits_ &= !NoticeTensor(tensor, now_ns, out);
}

int64_t Notices::DueNs(const std::vector<bool>& missing, int64_t since_ns, int64_t last_ns) const {
  int64_t gap_max_ns = config_->notice_gap_max_ns;
  for (size_t i = 0; i < missing.size(); ++i) {
    if (missing[i] && attendance_->members()[i].absent_ns > 0) {
      gap_max_ns = config_->absent_notice_gap_max_ns;
    }
  }
  return NextNotice(since_ns, last_ns, config_->notice_first_ns, gap_max_ns);
}

void Notices::NameMissing(const std::vector<bool>& missing, wire::Waiting& notice) const {
  for (uint32_t i = 0; i < missing.size() && notice.missing_nodes.size() < kMissingNodesMax; ++i) {
    if (!missing[i]) continue;
    const PresentMember& member = attendance_->members()[i];
    const uint32_t node = view_->IdOf(MemberIndex{i}).node.value();
    notice.missing_nodes.push_back(node);
    notice.absent_ns.push_back(static_cast<uint64_t>(member.absent_ns));
    if (member.has_left) notice.left_nodes.push_back(node);
  }
}

bool Notices::NoticeTensor(const AggregatorTensor& tensor, int64_t now_ns, Effects& out) {
  const std::optional<Wait> wait = WaitOf(tensor, view_->member_count());
  if (!wait) {
    if (!told_.empty()) told_.erase(tensor.key);
    return false;
  }
  Told& told = told_[tensor.key];
  if (wait->round != told.round || wait->since_ns != told.since_ns) {
    told = {.round = wait->round, .since_ns = wait->since_ns, .last_ns = wait->since_ns};
  }
  if (now_ns < DueNs(wait->missing, wait->since_ns, told.last_ns)) return true;
  told.last_ns = now_ns;
  wire::Waiting notice = {.key = tensor.key,
                          .round = wait->round,
                          .waited_ns = static_cast<uint64_t>(now_ns - wait->since_ns)};
  NameMissing(wait->missing, notice);
  // A member does not have the word if it knew nothing of the tensor then, or had no connection.
  if (wait->round == tensor.hurried) {
    for (uint32_t i = 0; i < wait->missing.size(); ++i) {
      if (wait->missing[i]) {
        TellToHurry(tensor, MemberIndex{i}, *view_, *attendance_, out);
      }
    }
  }
  // Missing members are told too: they may hold the round back without need.
  for (uint32_t i = 0; i < view_->member_count(); ++i) {
    const std::optional<ConnectionId>& connection = attendance_->ConnectionOf(MemberIndex{i});
    if (!connection || !tensor.participation.Includes(MemberIndex{i})) continue;
    ++counters_->waiting_notices;
    SendEntry(*connection, view_->epoch(), notice, out);
  }
  return true;
}

void Notices::NoticeEpoch(int64_t now_ns, Effects& out) {
  if (recovery_->is_complete() || view_->epoch() == Epoch{0}) return;
  std::vector<bool> missing;
  for (uint32_t i = 0; i < view_->member_count(); ++i) {
    missing.push_back(!recovery_->HasReported(MemberIndex{i}));
  }
  if (now_ns < DueNs(missing, view_since_ns_, last_epoch_notice_ns_)) return;
  last_epoch_notice_ns_ = now_ns;
  wire::Waiting notice = {.waited_ns = static_cast<uint64_t>(now_ns - view_since_ns_)};
  NameMissing(missing, notice);
  for (uint32_t i = 0; i < view_->member_count(); ++i) {
    const std::optional<ConnectionId>& connection = attendance_->ConnectionOf(MemberIndex{i});
    if (missing[i] || !connection) continue;
    ++counters_->waiting_notices;
    SendEntry(*connection, view_->epoch(), notice, out);
  }
  // A member that has not heard of this view learns, in the epoch that it holds, that it is missing
  // here.
  for (const auto& [connection, epoch] : sessions_->ThoseBehind()) {
    ++counters_->waiting_notices;
    SendEntry(connection, epoch, notice, out);
  }
}

}  // namespace talweg::aggregation
