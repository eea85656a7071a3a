// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_PATHS_H_
#define TALWEG_SERVICES_AGENT_GPU_PATHS_H_

#include <cstdint>
#include <vector>

#include "services/agent/gpu_collectives.h"
#include "services/agent/gpu_lane.h"
#include "services/agent/gpu_node.h"
#include "services/agent/gpu_tasks.h"

namespace talweg::agent {

// Chooses the path and the length of a piece. Both depend on the configuration only, as long as
// nothing fails. The lane has its task, and the range at whose start the piece begins. Owned by the
// data thread.
class GpuPaths {
 public:
  // All outlive this object.
  GpuPaths(const GpuStageOptions& options, GpuNode& node, GpuCollectives& collectives)
      : options_(options), node_(node), collectives_(collectives) {}

  // Returns the groups of these GPUs, in the order of the first rank on each.
  std::vector<GpuSet> GroupsOf(const GpuTask& task, const GpuSet& gpus);
  // The lane must have its groups.
  LanePath PathOf(const Lane& lane, int64_t now_ns);
  // The lane must have its path.
  uint64_t BytesMax(const Lane& lane) const;

 private:
  // Returns whether one kernel writes the sum over the contributions.
  static bool SumsInPlace(const GpuTask& task, const GpuSet& gpus);
  // Returns whether a piece of a tensor with a home has to go through the host.
  static bool LeavesHome(const Lane& lane);
  bool HasStaging(const gpu::GpuUuid& uuid) const;
  // Returns how many bytes of the GPU's staging one piece may take.
  uint64_t RoomOn(const Lane& lane, const gpu::GpuUuid& uuid) const;

  const GpuStageOptions& options_;
  GpuNode& node_;
  GpuCollectives& collectives_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_PATHS_H_
