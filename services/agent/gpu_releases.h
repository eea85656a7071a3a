// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_RELEASES_H_
#define TALWEG_SERVICES_AGENT_GPU_RELEASES_H_

#include "services/agent/gpu_buffers.h"
#include "services/agent/gpu_collectives.h"
#include "services/agent/gpu_gradients.h"
#include "services/agent/gpu_homes.h"
#include "services/agent/gpu_lanes.h"
#include "services/agent/gpu_losses.h"
#include "services/agent/gpu_node.h"
#include "services/agent/gpu_pins.h"
#include "services/agent/gpu_surroundings.h"

namespace talweg::agent {

// Releases what nobody needs any more: buffers, the memory of ranks that have left, and GPUs that
// no rank, lane or NIC uses. A release waits for all work on a GPU, so it is put off while a
// collective there may hang. Owned by the data thread.
class GpuReleases {
 public:
  // All outlive this object.
  GpuReleases(GpuNode& node, GpuCollectives& collectives, const GpuLosses& losses,
              GpuBuffers& buffers, GpuPins& pins, GpuGradients& gradients, const GpuHomes& homes,
              const GpuLanes& lanes, GpuEvents& events)
      : node_(node),
        collectives_(collectives),
        losses_(losses),
        buffers_(buffers),
        pins_(pins),
        gradients_(gradients),
        homes_(homes),
        lanes_(lanes),
        events_(events) {}

  // A GPU may have become unused for another reason than a rank that left.
  void OnLetGo() { look_for_unused_ = true; }
  int Poll();
  void CloseUnusedGpus();

 private:
  int ReleaseBuffers();
  int ReleaseRanks();

  GpuNode& node_;
  GpuCollectives& collectives_;
  const GpuLosses& losses_;
  GpuBuffers& buffers_;
  GpuPins& pins_;
  GpuGradients& gradients_;
  const GpuHomes& homes_;
  const GpuLanes& lanes_;
  GpuEvents& events_;
  bool look_for_unused_ = false;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_RELEASES_H_
