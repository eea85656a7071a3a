// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/link_share.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "libs/aggregation/fair_share.h"

namespace talweg::aggregation {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
// Sharing pays if the link carries at least this part of what it carried without.
constexpr uint64_t kPaysNumerator = 7;
constexpr uint64_t kPaysDenominator = 8;
// Two measurements decide that it does not, or one below half.
constexpr int kPoorMax = 2;
// What a job sends and gets is compared over about this many recent bytes.
constexpr uint64_t kLateBytes = 64 * kMiB;

double PriorityWeight(view::Priority priority) {
  constexpr auto kRatio = static_cast<double>(FairShare::kPriorityRatio);
  switch (priority) {
    case view::Priority::kLow: return 1;
    case view::Priority::kNormal: return kRatio;
    case view::Priority::kHigh: return kRatio * kRatio;
  }
  return kRatio;
}

}  // namespace

uint64_t LinkShare::Measurement::BytesPerMs() const {
  return ns < kNsPerMs ? 0 : bytes / static_cast<uint64_t>(ns / kNsPerMs);
}

void LinkShare::Set(JobId job, const view::JobQuota& quota) {
  jobs_[job].quota = quota;
  SetParts();
}

void LinkShare::Remove(JobId job) {
  jobs_.erase(job);
  Refresh(now_ns_);
}

void LinkShare::SetWants(JobId id, bool wants, int64_t now_ns) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end() || found->second.wants == wants) return;
  Advance(now_ns);
  found->second.wants = wants;
  if (wants) found->second.moved_at_ns = now_ns;
  Refresh(now_ns);
}

LinkShare::Job* LinkShare::Count(JobId id, uint64_t bytes, int64_t now_ns) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return nullptr;
  Advance(now_ns);
  Job& job = found->second;
  job.moved_at_ns = now_ns;
  if (job.wants && !job.is_active) Refresh(now_ns);
  if (active_count_ >= 2) measured_.bytes += bytes;
  if (job.received_bytes + job.sent_bytes >= kLateBytes) {
    job.received_bytes /= 2;
    job.sent_bytes /= 2;
  }
  return &job;
}

void LinkShare::OnReceived(JobId id, uint64_t bytes, int64_t now_ns) {
  if (Job* const job = Count(id, bytes, now_ns)) job->received_bytes += bytes;
}

void LinkShare::OnSent(JobId id, uint64_t bytes, int64_t now_ns) {
  if (Job* const job = Count(id, bytes, now_ns)) job->sent_bytes += bytes;
}

double LinkShare::CostOf(const Job& job) {
  const auto received = static_cast<double>(std::max<uint64_t>(job.received_bytes, 1));
  return (1 + static_cast<double>(job.sent_bytes) / received) / job.part;
}

LinkShare::Job* LinkShare::FindSharing(JobId id) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end() || phase() != Phase::kSharing || !found->second.is_active) {
    return nullptr;
  }
  return &found->second;
}

void LinkShare::OnGiven(JobId id, uint64_t bytes) {
  if (Job* const job = FindSharing(id)) job->account += static_cast<double>(bytes) * CostOf(*job);
}

uint64_t LinkShare::RoomBytes(JobId id, int64_t now_ns) {
  Advance(now_ns);
  Job* const job = FindSharing(id);
  if (job == nullptr) return kNoBound;
  // A job that waits here for others is not silent.
  job->moved_at_ns = now_ns;
  const double ahead = job->account - LeastAccount(job);
  const double room = (static_cast<double>(SlackBytes()) - ahead) / CostOf(*job);
  return room <= 0 ? 0 : static_cast<uint64_t>(room);
}

uint64_t LinkShare::MostRoomBytes(JobId id) {
  const Job* const job = FindSharing(id);
  if (job == nullptr) return kNoBound;
  return static_cast<uint64_t>(static_cast<double>(SlackBytes()) / CostOf(*job));
}

LinkShare::Phase LinkShare::phase() const { return active_count_ < 2 ? Phase::kAlone : phase_; }

double LinkShare::PartOf(JobId id) const {
  const auto found = jobs_.find(id);
  return found == jobs_.end() || !found->second.is_active ? 0 : found->second.part;
}

uint64_t LinkShare::SlackBytes() const {
  return std::max(kSlackBytesMin, carried_per_ms_ * static_cast<uint64_t>(kSlackNs / kNsPerMs));
}

double LinkShare::LeastAccount(const Job* except) const {
  double least = std::numeric_limits<double>::max();
  for (const auto& [id, job] : jobs_) {
    if (job.is_active && &job != except) least = std::min(least, job.account);
  }
  return least;
}

void LinkShare::Refresh(int64_t now_ns) {
  refreshed_at_ns_ = now_ns;
  size_t count = 0;
  bool has_changed = false;
  for (auto& [id, job] : jobs_) {
    const bool is_active = job.wants && now_ns - job.moved_at_ns < kSilenceNs;
    if (is_active) ++count;
    if (is_active == job.is_active) continue;
    has_changed = true;
    // Earlier idleness earns no credit.
    if (is_active && active_count_ > 0) {
      const double least = LeastAccount(&job);
      const auto slack = static_cast<double>(SlackBytes());
      job.account = std::clamp(job.account, least - slack, least + slack);
    }
    job.is_active = is_active;
  }
  if (!has_changed && count == active_count_) return;
  active_count_ = count;
  SetParts();
}

// Three levels: priorities, tenants, jobs. A job that does not want the link leaves its part to the
// others of its level.
void LinkShare::SetParts() {
  using TenantKey = std::pair<std::string, JobId>;
  struct Level {
    double weight = 0;
    std::map<TenantKey, std::pair<double, double>>
        tenants;  // The tenant's weight, and the sum of its jobs' weights.
    double tenant_weights = 0;
  };
  const auto tenant_of = [](JobId id, const Job& job) {
    return TenantKey{job.quota.tenant, job.quota.tenant.empty() ? id : JobId{0}};
  };
  std::map<view::Priority, Level> levels;
  for (const auto& [id, job] : jobs_) {
    if (!job.is_active) continue;
    Level& level = levels[job.quota.priority];
    auto& [tenant_weight, job_weights] = level.tenants[tenant_of(id, job)];
    tenant_weight = job.quota.tenant_weight;
    job_weights += job.quota.weight;
  }
  double level_weights = 0;
  for (auto& [priority, level] : levels) {
    level.weight = PriorityWeight(priority);
    level_weights += level.weight;
    for (const auto& [key, weights] : level.tenants) level.tenant_weights += weights.first;
  }
  for (auto& [id, job] : jobs_) {
    if (!job.is_active) continue;
    const Level& level = levels.at(job.quota.priority);
    const auto& [tenant_weight, job_weights] = level.tenants.at(tenant_of(id, job));
    job.part = level.weight / level_weights * tenant_weight / level.tenant_weights *
               job.quota.weight / job_weights;
  }
}

void LinkShare::Advance(int64_t now_ns) {
  const int64_t elapsed_ns = now_ns - now_ns_;
  if (elapsed_ns <= 0) return;
  now_ns_ = now_ns;
  if (active_count_ >= 2) {
    measured_.ns += elapsed_ns;
    phase_ns_ += elapsed_ns;
  }
  if (active_count_ > 0 && now_ns - refreshed_at_ns_ >= kNsPerMs) Refresh(now_ns);
  if (measured_.ns < kMeasureNs) return;
  const bool is_plain = phase_ == Phase::kSharing && IsIdle(measured_.BytesPerMs());
  if (is_plain || measured_.bytes >= kMeasureBytes || measured_.ns >= kMeasureNsMax) {
    EndMeasurement();
  }
}

// Less than half is more than chance.
bool LinkShare::IsIdle(uint64_t carried_per_ms) const {
  return carried_per_ms * 2 < carried_per_ms_;
}

bool LinkShare::Pays(uint64_t sharing_per_ms, uint64_t without_per_ms) {
  return sharing_per_ms * kPaysDenominator >= without_per_ms * kPaysNumerator;
}

void LinkShare::EndMeasurement() {
  const Measurement measured = std::exchange(measured_, {});
  const uint64_t carried_per_ms = measured.BytesPerMs();
  if (phase_ == Phase::kMeasuring) {
    // The link carries no more without sharing, so sharing was not the cause.
    if (pause_ns_ > 0 && Pays(poor_per_ms_, carried_per_ms)) {
      pause_ns_ = 0;
      next_pause_ns_ = kMeasureNs;
    }
    if (phase_ns_ < pause_ns_) return;
    carried_per_ms_ = carried_per_ms;
    sharing_ns_ = kSharingRatio * measured.ns;
    Begin(Phase::kSharing, 0);
    return;
  }
  if (Pays(carried_per_ms, carried_per_ms_)) {
    poor_count_ = 0;
    next_pause_ns_ = std::max(next_pause_ns_ / 2, kMeasureNs);
    if (phase_ns_ >= sharing_ns_) Begin(Phase::kMeasuring, 0);
    return;
  }
  if (++poor_count_ < kPoorMax && !IsIdle(carried_per_ms)) return;
  poor_per_ms_ = carried_per_ms;
  Begin(Phase::kMeasuring, next_pause_ns_);
  next_pause_ns_ = std::min(kPauseRatio * next_pause_ns_, kPauseNsMax);
}

void LinkShare::Begin(Phase phase, int64_t pause_ns) {
  phase_ = phase;
  phase_ns_ = 0;
  pause_ns_ = pause_ns;
  poor_count_ = 0;
}

}  // namespace talweg::aggregation
