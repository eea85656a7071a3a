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

// What follows when a piece, a collective or a lane's GPU fails: the host does the piece, or this
// node cannot go on. Owned by the data thread.
class GpuFailures {
 public:
  // All outlive it.
  GpuFailures(GpuNode& node, GpuCollectives& collectives, const GpuLosses& losses, GpuLanes& lanes,
              GpuEvents& events, GpuStageCounters& counters)
      : node_(node),
        collectives_(collectives),
        losses_(losses),
        lanes_(lanes),
        events_(events),
        counters_(counters) {}

  // This node cannot go on. The first reason is the one that is told.
  void Fail(const std::string& text);
  bool has_failed() const { return has_failed_; }

  // No GPU is lost by it.
  void OnPieceFailed(Lane& lane, const absl::Status& status, int64_t now_ns);
  // Handles the failure of one group, and with it of all that run beside it in a lane.
  void OnCollectiveFailed(const GpuSet& group, const absl::Status& status, int64_t now_ns);
  // Lanes on lost GPUs are drained, or are from now on.
  void OnGpuLost(const absl::Status& why, int64_t now_ns);

 private:
  using Aside = std::vector<std::pair<gpu::GpuUuid, LanePart>>;

  std::string OverContributions(const Lane& lane, const absl::Status& why) const;
  // Those that use one of the groups, to which it adds the groups that they use beside it.
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
