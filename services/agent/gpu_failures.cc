// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_failures.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <set>

#include "libs/status/status.h"

namespace talweg::agent {

void GpuFailures::Fail(const std::string& text) {
  if (std::exchange(has_failed_, true)) return;
  events_.OnGpuFailed(text);
}

// Some ranks have lost their contribution, and others have no result.
std::string GpuFailures::OverContributions(const Lane& lane, const absl::Status& why) const {
  return absl::StrCat(lanes_.Describe(lane), ": ", status::StatusText(why),
                      "; its results were being written over the contributions");
}

void GpuFailures::OnPieceFailed(Lane& lane, const absl::Status& status, int64_t now_ns) {
  if (lane.task->is_final && lane.writes_ranks) return Fail(OverContributions(lane, status));
  const bool by_collective = lane.path == LanePath::kCollective;
  if (absl::IsUnavailable(status) && by_collective && lane.step != LaneStep::kCopying &&
      lane.step != LaneStep::kDraining) {
    return OnCollectiveFailed(GpuSet(lane.groups.front()), status, now_ns);
  }
  if (absl::IsUnimplemented(status) && lane.path != LanePath::kHost) {
    for (const gpu::GpuUuid& uuid : lane.gpus) node_.At(uuid).has_kernels = false;
    events_.OnGpuNote(absl::StrCat("ranks that share a GPU are summed on the host: ",
                                   status::StatusText(status)));
    return lanes_.Redo(lane, now_ns);
  }
  if (absl::IsResourceExhausted(status) && lane.path != LanePath::kHost &&
      lane.path != LanePath::kDirect) {
    return lanes_.Redo(lane, now_ns);
  }
  Fail(absl::StrCat(lanes_.Describe(lane), ": ", status::StatusText(status)));
}

void GpuFailures::PutAside(const Lane& lane, std::map<GpuSet, Aside>& aside) {
  for (const GpuSet& group : lane.groups) {
    if (group.size() == 1) continue;
    for (const gpu::GpuUuid& uuid : group) {
      if (!losses_.Has(uuid)) aside[group].emplace_back(uuid, node_.TakeAside(uuid, lane.index));
    }
  }
}

absl::Status GpuFailures::RenewParts(const Lane& lane) {
  for (const GpuSet& group : lane.groups) {
    if (group.size() == 1) continue;
    for (const gpu::GpuUuid& uuid : group) {
      if (!losses_.Has(uuid)) TALWEG_RETURN_IF_ERROR(node_.RenewPart(uuid, lane.index));
    }
  }
  return absl::OkStatus();
}

// A failed group affects the groups that run beside it in a lane. Each of these affects the groups
// beside it in turn.
std::vector<Lane*> GpuFailures::AffectedBy(std::set<GpuSet>& failed) {
  std::vector<Lane*> affected;
  const auto is_affected = [&](const Lane& lane) {
    const bool uses = lane.step == LaneStep::kAwaitCommunicator || lane.is_in_collective();
    return uses && std::any_of(lane.groups.begin(), lane.groups.end(),
                               [&](const GpuSet& its) { return failed.contains(its); });
  };
  for (size_t known = 0; known != failed.size();) {
    known = failed.size();
    affected.clear();
    for (Lane& lane : lanes_.all()) {
      if (!is_affected(lane)) continue;
      affected.push_back(&lane);
      failed.insert(lane.groups.begin(), lane.groups.end());
    }
  }
  return affected;
}

void GpuFailures::OnCollectiveFailed(const GpuSet& group, const absl::Status& status,
                                     int64_t now_ns) {
  ++counters_.collectives_failed;
  std::set<GpuSet> failed = {group};
  const std::vector<Lane*> affected = AffectedBy(failed);
  std::map<GpuSet, Aside> aside;
  for (const Lane* const lane : affected) {
    if (lane->step != LaneStep::kAwaitCommunicator) PutAside(*lane, aside);
  }
  if (!affected.empty()) {
    events_.OnGpuNote(absl::StrCat(lanes_.Describe(*affected[0]), ": ", status::StatusText(status),
                                   "; summed on the host until the communicator is made anew"));
  }
  for (const GpuSet& set : failed) {
    if (set.size() > 1) collectives_.Fail(set, std::move(aside[set]), now_ns);
  }
  // After the aborts, because an allocation may have to wait for a collective that hangs.
  for (const Lane* const lane : affected) {
    if (lane->step == LaneStep::kAwaitCommunicator) continue;
    if (const absl::Status renewed = RenewParts(*lane); !renewed.ok()) {
      return Fail(absl::StrCat(lanes_.Describe(*lane),
                               ": after a collective failed: ", status::StatusText(renewed)));
    }
  }
  for (Lane* const lane : affected) lanes_.Redo(*lane, now_ns);
}

void GpuFailures::OnGpuLost(const absl::Status& why, int64_t now_ns) {
  const auto is_affected = [this](const Lane& lane) {
    return !lane.is_free() && lane.step != LaneStep::kDraining && losses_.HasAny(lane.gpus);
  };
  for (const Lane& lane : lanes_.all()) {
    if (!is_affected(lane) || !lane.task->is_final || !lane.writes_ranks) continue;
    return Fail(OverContributions(lane, why));
  }
  for (Lane& lane : lanes_.all()) {
    if (!is_affected(lane)) continue;
    if (lane.step == LaneStep::kCopying) {
      lanes_.Redo(lane, now_ns);
    } else {
      OnCollectiveFailed(GpuSet(lane.groups.front()), why, now_ns);
    }
  }
}

}  // namespace talweg::agent
