// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_HOMES_H_
#define TALWEG_SERVICES_AGENT_GPU_HOMES_H_

#include <absl/status/statusor.h>

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <span>

#include "libs/gpu/device.h"
#include "libs/pipeline/effects.h"
#include "services/agent/gpu_buffers.h"
#include "services/agent/gpu_collectives.h"
#include "services/agent/gpu_losses.h"
#include "services/agent/gpu_node.h"

namespace talweg::agent {

// The memory on one GPU through which a NIC sends and receives a tensor, beside the tensor's memory
// on the host.
struct GpuHome {
  gpu::GpuUuid gpu;         // A GPU that the ranks use.
  uint32_t rank_count = 0;  // The node's.
  gpu::DeviceSpan allocated;
  gpu::DeviceSpan send;
  std::array<gpu::DeviceSpan, 2> results;

  gpu::DeviceSpan Bytes(const pipeline::SliceBytes& slice) const;
};

// Tensors that a NIC sends from a GPU and receives into it (docs/gpu.md, "GPUDirect"). Owned by the
// data thread.
class GpuHomes {
 public:
  struct DirectMemory {
    gpu::NicMemory send;
    std::array<gpu::NicMemory, 2> results;  // By parity of the round.
  };

  // All outlive this object.
  GpuHomes(const GpuStageOptions& options, GpuNode& node, GpuCollectives& collectives,
           const GpuLosses& losses, const GpuBuffers& buffers)
      : options_(options),
        node_(node),
        collectives_(collectives),
        losses_(losses),
        buffers_(buffers) {}

  // GpuStage::MakeDirect.
  absl::StatusOr<DirectMemory> Make(pipeline::TensorIndex tensor, const pipeline::TensorSpec& spec,
                                    uint32_t rank_count, int64_t now_ns);
  // Frees the tensor's home, if there is one. Returns whether there was.
  bool Drop(pipeline::TensorIndex tensor);
  void DropAll();

  // Store writes the bytes of a slice that came in a frame, Fetch reads those of one that leaves in
  // a frame. An error is the GPU's.
  absl::Status Store(const pipeline::SliceBytes& slice, std::span<const std::byte> bytes);
  absl::Status Fetch(const pipeline::SliceBytes& slice, std::span<std::byte> bytes);
  // Call it before posting work that reads what a NIC wrote.
  absl::Status Flush(const GpuHome& home) { return node_.DeviceOf(home.gpu).FlushNicWrites(); }

  bool Has(pipeline::TensorIndex tensor) const { return homes_.contains(tensor); }
  bool empty() const { return homes_.empty(); }
  // Returns null if the tensor has no home.
  const GpuHome* Find(pipeline::TensorIndex tensor) const;
  // Returns null if these bytes lie on the host.
  const GpuHome* HomeOf(const pipeline::SliceBytes& slice) const;
  bool AreOn(const gpu::GpuUuid& uuid) const;
  void AddGpus(std::set<gpu::GpuUuid>& uuids) const;

 private:
  // Returns one of the GPUs on which the node's ranks have memory. For the same set of GPUs it is
  // always the same.
  absl::StatusOr<gpu::GpuUuid> ChooseGpu(const pipeline::TensorSpec& spec, uint32_t rank_count,
                                         int64_t now_ns);

  const GpuStageOptions& options_;
  GpuNode& node_;
  GpuCollectives& collectives_;
  const GpuLosses& losses_;
  const GpuBuffers& buffers_;
  std::map<pipeline::TensorIndex, GpuHome> homes_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_HOMES_H_
