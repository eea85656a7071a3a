// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/fair_share.h"

#include <algorithm>
#include <utility>

#include "libs/base/check.h"

namespace talweg::aggregation {
namespace {

size_t LevelOf(view::Priority priority) {
  switch (priority) {
    case view::Priority::kLow: return 0;
    case view::Priority::kNormal: return 1;
    case view::Priority::kHigh: return 2;
  }
  return 1;
}

// Returns the flow with the earliest time among those with work, or the end.
template <typename Map, typename FlowOf>
auto Earliest(Map& flows, const FlowOf& flow_of) {
  auto best = flows.end();
  for (auto it = flows.begin(); it != flows.end(); ++it) {
    const auto& flow = flow_of(it);
    if (flow.waits > 0 && (best == flows.end() || flow.time < flow_of(best).time)) best = it;
  }
  return best;
}

}  // namespace

void FairShare::Bound(Flow& flow, uint64_t now) {
  flow.time = std::clamp(flow.time, now, now + kAheadBytesMax / flow.weight);
}

void FairShare::SetFlowWaits(Flow& flow, uint64_t now, bool waits) {
  if (!waits) {
    TALWEG_CHECK(flow.waits > 0);
    --flow.waits;
    return;
  }
  if (flow.waits++ == 0) Bound(flow, now);
}

void FairShare::Set(JobId job, const view::JobQuota& quota) {
  Level& level = levels_[LevelOf(quota.priority)];
  TenantKey key = {quota.tenant, quota.tenant.empty() ? job : JobId{0}};
  uint64_t served_bytes = 0;
  bool waits = false;
  if (const auto known = places_.find(job); known != places_.end()) {
    const Place& place = known->second;
    if (place.level == &level && place.tenant_key == key) {
      place.flow->weight = quota.weight;
      place.tenant->flow.weight = quota.tenant_weight;
      return;
    }
    served_bytes = place.served_bytes;
    waits = place.flow->waits > 0;
    Remove(job);
  }
  Tenant& tenant = level.tenants[key];
  Flow& flow = tenant.jobs[job];
  tenant.flow.weight = quota.tenant_weight;
  flow.weight = quota.weight;
  places_[job] = {.level = &level,
                  .tenant_key = std::move(key),
                  .tenant = &tenant,
                  .flow = &flow,
                  .served_bytes = served_bytes};
  if (waits) SetWaits(job, true);
}

void FairShare::Remove(JobId job) {
  const auto found = places_.find(job);
  if (found == places_.end()) return;
  SetWaits(job, false);
  const Place& place = found->second;
  place.tenant->jobs.erase(job);
  if (place.tenant->jobs.empty()) place.level->tenants.erase(place.tenant_key);
  places_.erase(found);
}

void FairShare::SetWaits(JobId job, bool waits) {
  const auto found = places_.find(job);
  if (found == places_.end()) return;
  const Place& place = found->second;
  if ((place.flow->waits > 0) == waits) return;
  SetFlowWaits(place.level->flow, now_, waits);
  SetFlowWaits(place.tenant->flow, place.level->now, waits);
  SetFlowWaits(*place.flow, place.tenant->now, waits);
}

std::optional<JobId> FairShare::Next() const {
  const Level* next = nullptr;
  for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
    if (level->flow.waits == 0) continue;
    if (next == nullptr || level->flow.time < next->flow.time) next = &*level;
  }
  if (next == nullptr) return std::nullopt;
  const auto tenant =
      Earliest(next->tenants, [](auto it) -> const Flow& { return it->second.flow; });
  TALWEG_CHECK(tenant != next->tenants.end());
  const auto job = Earliest(tenant->second.jobs, [](auto it) -> const Flow& { return it->second; });
  TALWEG_CHECK(job != tenant->second.jobs.end());
  return job->first;
}

void FairShare::Count(JobId job, uint64_t bytes, bool was_next) {
  const auto found = places_.find(job);
  if (found == places_.end()) return;
  Place& place = found->second;
  const uint64_t cost = bytes + kPieceBytes;
  place.served_bytes += cost;
  Level& level = *place.level;
  Tenant& tenant = *place.tenant;
  Flow& flow = *place.flow;
  if (was_next) {
    now_ = std::max(now_, level.flow.time);
    level.now = std::max(level.now, tenant.flow.time);
    tenant.now = std::max(tenant.now, flow.time);
  }
  // A waiting flow's time is not below that of any flow that was next, so this changes only flows
  // that do not wait.
  Bound(level.flow, now_);
  Bound(tenant.flow, level.now);
  Bound(flow, tenant.now);
  level.flow.Spend(cost);
  tenant.flow.Spend(cost);
  flow.Spend(cost);
}

uint64_t FairShare::ServedBytes(JobId job) const {
  const auto found = places_.find(job);
  return found == places_.end() ? 0 : found->second.served_bytes;
}

}  // namespace talweg::aggregation
