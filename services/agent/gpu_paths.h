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

// Which way a piece goes, and how long it may be: by configuration alone, as long as nothing fails.
// The lane has its task, and the range that its piece begins. Owned by the data thread.
class GpuPaths {
 public:
  // All outlive it.
  GpuPaths(const GpuStageOptions& options, GpuNode& node, GpuCollectives& collectives)
      : options_(options), node_(node), collectives_(collectives) {}

  // In the order of the first ranks on them.
  std::vector<GpuSet> GroupsOf(const GpuTask& task, const GpuSet& gpus);
  // The lane has its groups.
  LanePath PathOf(const Lane& lane, int64_t now_ns);
  // The lane has its path.
  uint64_t BytesMax(const Lane& lane) const;

 private:
  // Whether one kernel sums it over the contributions.
  static bool SumsInPlace(const GpuTask& task, const GpuSet& gpus);
  // A NIC has the memory, and it cannot stay on GPUs.
  static bool LeavesHome(const Lane& lane);
  bool HasStaging(const gpu::GpuUuid& uuid) const;
  // What of the GPU's staging one piece may take.
  uint64_t RoomOn(const Lane& lane, const gpu::GpuUuid& uuid) const;

  const GpuStageOptions& options_;
  GpuNode& node_;
  GpuCollectives& collectives_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_PATHS_H_
