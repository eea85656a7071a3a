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

// Pins tensors' host memory, so that GPUs copy to and from it without staging. One GPU pins a
// tensor for all GPUs. A tensor that cannot be pinned is staged; OnGpuNote reports it once. Owned
// by the data thread.
class GpuPins {
 public:
  // All outlive this object.
  GpuPins(GpuNode& node, const HostTensors& host, GpuEvents& events)
      : node_(node), host_(host), events_(events) {}

  // Does nothing if the tensor was pinned before.
  void Pin(pipeline::TensorIndex tensor, const gpu::GpuUuid& uuid);
  bool IsPinned(const pipeline::SliceBytes& slice) const;
  void UnpinAll();
  // Unpins what this GPU has pinned.
  void UnpinOn(const gpu::GpuUuid& uuid);
  // The same for a GPU whose context is lost, and the pins with it.
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
