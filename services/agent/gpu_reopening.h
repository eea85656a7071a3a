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

// Closes the contexts of lost GPUs, and opens those that ranks still use again.
//
// A context is lost by a fault of the GPU, or of a neighbour under MPS. It takes the agent's
// streams, events, mappings and pinned memory with it. It takes nothing of the ranks', which have
// contexts of their own. So the stage gives up what was begun, opens the GPU again, maps the ranks'
// memory anew, and does again what is not over. Only the events were the agent's, and the ranks
// have to ask for them: they push once more what is open. Until then nothing touches that memory.
//
// Owned by the data thread.
class GpuReopening {
 public:
  // All outlive it.
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
    GpuSet back;         // They are lost no more.
  };
  Progress Tend(int64_t now_ns);

 private:
  // Returns why it is lost still; OK: it is not.
  absl::Status TendOne(const gpu::GpuUuid& uuid, int64_t now_ns, Progress& progress);
  // Whether the lost context is gone, with what was pinned in it.
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
