// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_FAILURES_H_
#define TALWEG_SERVICES_AGENT_GPU_FAILURES_H_

#include <absl/status/status.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "services/agent/gpu_collectives.h"
#include "services/agent/gpu_lanes.h"
#include "services/agent/gpu_losses.h"
#include "services/agent/gpu_node.h"
#include "services/agent/gpu_surroundings.h"

namespace talweg::agent {

// Handles the failure of a piece, a collective or a lane's GPU: the host does the piece, or this
// node cannot go on. Owned by the data thread.
class GpuFailures {
 public:
  // All outlive this object.
  GpuFailures(GpuNode& node, GpuCollectives& collectives, const GpuLosses& losses, GpuLanes& lanes,
              GpuEvents& events, GpuStageCounters& counters)
      : node_(node),
        collectives_(collectives),
        losses_(losses),
        lanes_(lanes),
        events_(events),
        counters_(counters) {}

  // This node cannot go on. Only the first call is reported.
  void Fail(const std::string& text);
  bool has_failed() const { return has_failed_; }

  // The lane's piece failed, but no GPU is lost.
  void OnPieceFailed(Lane& lane, const absl::Status& status, int64_t now_ns);
  // The group's collective failed. Handles it, and all groups that run beside this one in a lane.
  void OnCollectiveFailed(const GpuSet& group, const absl::Status& status, int64_t now_ns);
  // Drains the lanes on lost GPUs.
  void OnGpuLost(const absl::Status& why, int64_t now_ns);

 private:
  using Aside = std::vector<std::pair<gpu::GpuUuid, LanePart>>;

  std::string OverContributions(const Lane& lane, const absl::Status& why) const;
  // Returns the lanes that use one of the groups in `failed`. Adds the other groups of these lanes
  // to `failed`.
  std::vector<Lane*> AffectedBy(std::set<GpuSet>& failed);
  void PutAside(const Lane& lane, std::map<GpuSet, Aside>& aside);
  absl::Status RenewParts(const Lane& lane);

  GpuNode& node_;
  GpuCollectives& collectives_;
  const GpuLosses& losses_;
  GpuLanes& lanes_;
  GpuEvents& events_;
  GpuStageCounters& counters_;
  bool has_failed_ = false;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_FAILURES_H_
