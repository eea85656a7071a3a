// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_REOPENING_H_
#define TALWEG_SERVICES_AGENT_GPU_REOPENING_H_

#include <absl/status/status.h>

#include <cstdint>
#include <string>

#include "services/agent/gpu_buffers.h"
#include "services/agent/gpu_collectives.h"
#include "services/agent/gpu_gradients.h"
#include "services/agent/gpu_lanes.h"
#include "services/agent/gpu_losses.h"
#include "services/agent/gpu_node.h"
#include "services/agent/gpu_pins.h"

namespace talweg::agent {

// Closes the contexts of lost GPUs, and reopens the GPUs that ranks still use.
//
// A fault of the GPU, or of a neighbour under MPS, destroys the agent's context there, with its
// streams, events, mappings and pinned memory. The ranks have contexts of their own and lose
// nothing. So the stage drops the pieces that were begun, reopens the GPU, maps the ranks' memory
// again, and repeats what was not complete. The events were the agent's: the ranks ask for new
// ones, and push their open rounds again. Until then nothing touches the ranks' memory.
//
// Owned by the data thread.
class GpuReopening {
 public:
  // All outlive this object.
  GpuReopening(const GpuStageOptions& options, GpuNode& node, GpuCollectives& collectives,
               GpuLosses& losses, GpuBuffers& buffers, GpuPins& pins, GpuGradients& gradients,
               const GpuLanes& lanes)
      : options_(options),
        node_(node),
        collectives_(collectives),
        losses_(losses),
        buffers_(buffers),
        pins_(pins),
        gradients_(gradients),
        lanes_(lanes) {}

  struct Progress {
    int work = 0;
    std::string failed;  // Why this node cannot go on, or "".
    GpuSet back;         // The GPUs that are no longer lost.
  };
  Progress Tend(int64_t now_ns);

 private:
  // Returns OK if the GPU is no longer lost, else why it still is.
  absl::Status TendOne(const gpu::GpuUuid& uuid, int64_t now_ns, Progress& progress);
  // Closes the lost context, and with it all pins there. Returns whether it could.
  bool Close(const gpu::GpuUuid& uuid);
  absl::Status Reopen(const gpu::GpuUuid& uuid);

  const GpuStageOptions& options_;
  GpuNode& node_;
  GpuCollectives& collectives_;
  GpuLosses& losses_;
  GpuBuffers& buffers_;
  GpuPins& pins_;
  GpuGradients& gradients_;
  const GpuLanes& lanes_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_REOPENING_H_
