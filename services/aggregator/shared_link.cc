// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/shared_link.h"

#include <algorithm>
#include <utility>

#include "libs/base/check.h"

namespace talweg::aggregator {

using aggregation::LinkShare;

SharedLink::Lane::Lane(SharedLink* link, std::function<void()> wake)
    : link_(link), wake_(std::move(wake)) {}

SharedLink::Lane::~Lane() {
  const std::lock_guard lock(link_->mutex_);
  for (const auto& [id, use] : link_->uses_) TALWEG_CHECK(use->lane != this);
}

void SharedLink::Lane::Wake() {
  woken_.store(true, std::memory_order_release);
  wake_();
}

SharedLink::UseId SharedLink::Begin(Lane* lane, JobId id) {
  const std::lock_guard lock(mutex_);
  Job& job = jobs_[id];
  if (job.uses.empty()) share_.Set(id, {});
  const UseId use_id{++last_use_};
  auto use = std::make_unique<Use>(Use{.lane = lane, .job = id});
  job.uses.push_back(use.get());
  uses_.emplace(use_id, std::move(use));
  job_count_ = share_.job_count();
  return use_id;
}

void SharedLink::End(UseId id) {
  const std::lock_guard lock(mutex_);
  const auto found = uses_.find(id);
  Use& use = *found->second;
  SetWants(use, false, now_ns_);
  if (use.waiting_bytes > 0) --waiting_count_;
  const auto job = jobs_.find(use.job);
  std::erase(job->second.uses, &use);
  if (job->second.uses.empty()) {
    share_.Remove(use.job);
    jobs_.erase(job);
  }
  uses_.erase(found);
  job_count_ = share_.job_count();
  WakeLanes(now_ns_);
}

void SharedLink::SetQuota(JobId job, const view::JobQuota& quota) {
  const std::lock_guard lock(mutex_);
  if (jobs_.contains(job)) share_.Set(job, quota);
}

int64_t SharedLink::NotBefore(int64_t now_ns) { return now_ns_ = std::max(now_ns_, now_ns); }

void SharedLink::SetWants(Use& use, bool wants, int64_t now_ns) {
  if (wants == use.wants) return;
  use.wants = wants;
  size_t& count = jobs_.at(use.job).wanting_count;
  count += wants ? 1 : -1;
  share_.SetWants(use.job, count > 0, now_ns);
}

void SharedLink::Settle(std::span<Turn* const> turns, int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  now_ns = NotBefore(now_ns);
  // First all reports: they decide how much room there is.
  for (Turn* const turn : turns) {
    Use& use = *uses_.at(turn->use);
    const uint64_t received_bytes = std::exchange(turn->received_bytes, 0);
    const uint64_t sent_bytes = std::exchange(turn->sent_bytes, 0);
    if (received_bytes > 0) share_.OnReceived(use.job, received_bytes, now_ns);
    if (sent_bytes > 0) share_.OnSent(use.job, sent_bytes, now_ns);
    SetWants(use, turn->wants, now_ns);
  }
  for (Turn* const turn : turns) Give(*uses_.at(turn->use), *turn, now_ns);
  WakeLanes(now_ns);
}

void SharedLink::Give(Use& use, Turn& turn, int64_t now_ns) {
  turn.given_bytes = 0;
  if (turn.held_bytes > 0) {
    const uint64_t room_bytes =
        std::min(share_.RoomBytes(use.job, now_ns), LaneRoomBytes(use, now_ns));
    turn.given_bytes = std::min(turn.held_bytes, room_bytes);
  }
  if (turn.given_bytes > 0) {
    share_.OnGiven(use.job, turn.given_bytes);
    use.given_bytes += turn.given_bytes;
    turn.held_bytes -= turn.given_bytes;
  }
  if (use.waiting_bytes == 0 && turn.held_bytes > 0) {
    ++waiting_count_;
    // Nothing waited on this lane until now, so its total is behind those of the job's other lanes.
    // They do not wait until it has caught up.
    for (const Use* const other : jobs_.at(use.job).uses) {
      if (other->given_bytes < kLaneAheadBytes) continue;
      use.given_bytes = std::max(use.given_bytes, other->given_bytes - kLaneAheadBytes);
    }
  } else if (use.waiting_bytes > 0 && turn.held_bytes == 0) {
    --waiting_count_;
  }
  use.waiting_bytes = turn.held_bytes;
  use.woken_at_ns.reset();
}

uint64_t SharedLink::LaneRoomBytes(const Use& use, int64_t now_ns) const {
  uint64_t least = LinkShare::kNoBound;
  for (const Use* const other : jobs_.at(use.job).uses) {
    if (other == &use || other->waiting_bytes == 0 || IsLate(*other, now_ns)) continue;
    least = std::min(least, other->given_bytes);
  }
  if (least == LinkShare::kNoBound) return least;
  const uint64_t most = least + kLaneAheadBytes;
  return most > use.given_bytes ? most - use.given_bytes : 0;
}

void SharedLink::WakeLanes(int64_t now_ns) {
  if (waiting_count_ == 0) return;
  for (auto& [id, job] : jobs_) {
    const auto waits = [&](const Use* use) {
      return use->waiting_bytes > 0 && !IsLate(*use, now_ns);
    };
    if (std::none_of(job.uses.begin(), job.uses.end(), waits)) continue;
    const uint64_t room_bytes = share_.RoomBytes(id, now_ns);
    const uint64_t worth = std::clamp<uint64_t>(share_.MostRoomBytes(id) / 2, 1, kWakeBytes);
    for (Use* const use : job.uses) {
      if (!waits(use) || use->woken_at_ns) continue;
      if (std::min(room_bytes, LaneRoomBytes(*use, now_ns)) < std::min(use->waiting_bytes, worth)) {
        continue;
      }
      use->woken_at_ns = now_ns;
      use->lane->Wake();
    }
  }
}

LinkShare::Phase SharedLink::phase() const {
  const std::lock_guard lock(mutex_);
  return share_.phase();
}

double SharedLink::PartOf(JobId job) const {
  const std::lock_guard lock(mutex_);
  return share_.PartOf(job);
}

uint64_t SharedLink::SlackBytes() const {
  const std::lock_guard lock(mutex_);
  return share_.SlackBytes();
}

}  // namespace talweg::aggregator
