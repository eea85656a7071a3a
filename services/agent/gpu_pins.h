// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_PINS_H_
#define TALWEG_SERVICES_AGENT_GPU_PINS_H_

#include <map>
#include <span>
#include <vector>

#include "libs/gpu/device.h"
#include "libs/pipeline/effects.h"
#include "services/agent/gpu_node.h"
#include "services/agent/gpu_surroundings.h"

namespace talweg::agent {

// Tensors' memory on the host that copies of GPUs go to and come from without staging: one GPU has
// pinned it for all. What cannot be pinned is staged, and is told of once. Owned by the data
// thread.
class GpuPins {
 public:
  // All outlive it.
  GpuPins(GpuNode& node, const HostTensors& host, GpuEvents& events)
      : node_(node), host_(host), events_(events) {}

  // Unless it is pinned already.
  void Pin(pipeline::TensorIndex tensor, const gpu::GpuUuid& uuid);
  bool IsPinned(const pipeline::SliceBytes& slice) const;
  void UnpinAll();
  // What this GPU has pinned.
  void UnpinOn(const gpu::GpuUuid& uuid);
  // The same, where the GPU's context is lost, and the pins with it.
  void Forget(const gpu::GpuUuid& uuid);

 private:
  struct Pinned {
    gpu::GpuUuid gpu;
    std::vector<std::span<std::byte>> spans;
    bool send = false;
    bool results = false;
  };
  void Unpin(const Pinned& pinned);

  GpuNode& node_;
  const HostTensors& host_;
  GpuEvents& events_;
  std::map<pipeline::TensorIndex, Pinned> pinned_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_PINS_H_
