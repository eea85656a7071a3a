// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "libs/aggregation/aggregator_core.h"

// Who waits for whom, for the members and for people.
namespace talweg::aggregation {
namespace {

constexpr size_t kMissingNodesMax = 64;

// 1, 2, 4, ... seconds after the beginning, then at most `gap_max_ns` apart.
int64_t NextNotice(int64_t since_ns, int64_t last_ns, int64_t first_ns, int64_t gap_max_ns) {
  const int64_t waited_ns = last_ns - since_ns;
  int64_t next_ns = first_ns;
  while (next_ns <= waited_ns && next_ns < gap_max_ns) next_ns *= 2;
  if (next_ns > waited_ns) return since_ns + next_ns;
  return last_ns + gap_max_ns;
}

}  // namespace

std::optional<AggregatorCore::Wait> AggregatorCore::WaitOf(const AggregatorTensor& tensor) const {
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
  wait->missing.assign(members_.size(), false);
  wait->waiting.assign(members_.size(), false);
  for (const LocalSlice& slice : tensor.local) {
    if (!waits(slice) || slice.round.open_round() != wait->round) continue;
    ++wait->slices;
    wait->since_ns = std::min(wait->since_ns, slice.round.since_ns());
    for (uint32_t i = 0; i < members_.size(); ++i) {
      if (!tensor.participation.TakesPart(MemberIndex{i}, slice.part)) continue;
      (slice.round.parts()[i].here ? wait->waiting : wait->missing)[i] = true;
    }
  }
  return wait;
}

void AggregatorCore::CountAbsence(int64_t now_ns) {
  const int64_t gone_ns = awake_.Take(now_ns);
  for (PresentMember& member : members_) {
    // Who was there at the last tick has been away for less than what has passed since.
    const bool was_absent = std::exchange(member.absent_at_tick, !member.connection);
    if (was_absent && member.absent_at_tick) {
      member.absent_ns += gone_ns;
    }
  }
}

int64_t AggregatorCore::NoticeDueNs(const std::vector<bool>& missing, int64_t since_ns,
                                    int64_t last_ns) const {
  int64_t gap_max_ns = config_.notice_gap_max_ns;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (missing[i] && members_[i].absent_ns > 0) gap_max_ns = config_.absent_notice_gap_max_ns;
  }
  return NextNotice(since_ns, last_ns, config_.notice_first_ns, gap_max_ns);
}

void AggregatorCore::NameMissing(const std::vector<bool>& missing, wire::Waiting& notice) const {
  for (size_t i = 0; i < members_.size() && notice.missing_nodes.size() < kMissingNodesMax; ++i) {
    if (!missing[i]) continue;
    notice.missing_nodes.push_back(view_.members[i].id.node.value());
    notice.absent_ns.push_back(static_cast<uint64_t>(members_[i].absent_ns));
  }
}

bool AggregatorCore::NoticeTensor(AggregatorTensor& tensor, int64_t now_ns, Effects& out) {
  const std::optional<Wait> wait = WaitOf(tensor);
  if (!wait) {
    tensor.waiting_round = Round{0};
    return false;
  }
  if (wait->round != tensor.waiting_round || wait->since_ns != tensor.waiting_since_ns) {
    tensor.waiting_round = wait->round;
    tensor.waiting_since_ns = wait->since_ns;
    tensor.last_notice_ns = wait->since_ns;
  }
  if (now_ns < NoticeDueNs(wait->missing, wait->since_ns, tensor.last_notice_ns)) return true;
  tensor.last_notice_ns = now_ns;
  wire::Waiting notice = {.key = tensor.key,
                          .round = wait->round,
                          .waited_ns = static_cast<uint64_t>(now_ns - wait->since_ns)};
  NameMissing(wait->missing, notice);
  // Also to those that are missing: they may hold the round back without need.
  for (uint32_t i = 0; i < members_.size(); ++i) {
    if (!members_[i].connection || !tensor.participation.Includes(MemberIndex{i})) continue;
    ++counters_.waiting_notices;
    SendEntry(*members_[i].connection, notice, out);
  }
  return true;
}

void AggregatorCore::NoticeEpoch(int64_t now_ns, Effects& out) {
  if (reports_complete_ || view_.epoch == Epoch{0}) return;
  std::vector<bool> missing;
  for (const PresentMember& member : members_) missing.push_back(!member.reported);
  if (now_ns < NoticeDueNs(missing, view_since_ns_, last_epoch_notice_ns_)) return;
  last_epoch_notice_ns_ = now_ns;
  wire::Waiting notice = {.waited_ns = static_cast<uint64_t>(now_ns - view_since_ns_)};
  NameMissing(missing, notice);
  for (const PresentMember& member : members_) {
    if (!member.reported || !member.connection) continue;
    ++counters_.waiting_notices;
    SendEntry(*member.connection, notice, out);
  }
  // Whoever has not heard of this view learns, in the epoch that it holds, that it is missing here.
  for (const auto& [connection, session] : sessions_) {
    const bool is_behind = session.state == SessionState::kActive && session.epoch < view_.epoch;
    if (!is_behind) continue;
    ++counters_.waiting_notices;
    out.push_back(Send{connection, session.epoch, notice});
  }
}

JobStatus AggregatorCore::Status(int64_t now_ns) const {
  JobStatus status = {.job = config_.job,
                      .name = config_.name,
                      .epoch = view_.epoch,
                      .in_view = self_.has_value(),
                      .reports_complete = reports_complete_,
                      .reserved_bytes = place_.used_bytes(),
                      .counters = counters_};
  for (size_t i = 0; i < members_.size(); ++i) {
    const view::ViewMember& viewed = view_.members[i];
    const PresentMember& member = members_[i];
    MemberStatus& record = status.members.emplace_back();
    record.id = viewed.id;
    record.rank_count = viewed.rank_count;
    record.name = viewed.name;
    record.connected = member.connection.has_value();
    record.reported = member.reported;
    if (member.connection) {
      record.contribution_bytes = sessions_.at(*member.connection).contribution_bytes;
    }
  }
  for (const auto& [key, tensor] : tensors_) {
    TensorStatus& record = status.tensors.emplace_back();
    record.key = key;
    if (tensor.agreed) {
      record.name = tensor.agreed->name;
      record.collective = tensor.agreed->collective;
    }
    record.slices_here = tensor.Placed() ? static_cast<uint32_t>(tensor.local.size()) : 0;
    record.slice_count = tensor.slice_count;
    record.reserved_bytes = tensor.reserved_bytes;
    if (tensor.poison) record.poisoned = tensor.poison->text;
    if (tensor.Placed()) {
      for (const LocalSlice& slice : tensor.local) {
        record.round_summed = std::max(record.round_summed, slice.round.standing().round);
      }
    }
    const std::optional<Wait> wait = WaitOf(tensor);
    if (!wait) continue;
    RoundStatus& round = status.open_rounds.emplace_back();
    round.tensor = record.name;
    round.round = wait->round;
    round.slices_open = wait->slices;
    round.slices_here = record.slices_here;
    for (const LocalSlice& slice : tensor.local) {
      round.slices_summed += slice.round.standing().round >= wait->round ? 1 : 0;
    }
    round.waited_ns = now_ns - wait->since_ns;
    for (size_t i = 0; i < members_.size(); ++i) {
      if (wait->missing[i]) round.missing.push_back(view_.members[i].id.node);
    }
  }
  return status;
}

}  // namespace talweg::aggregation
