// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_FRONT_H_
#define TALWEG_SERVICES_AGENT_GPU_FRONT_H_

#include <absl/status/statusor.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "libs/config/config.h"
#include "libs/gpu/device.h"
#include "libs/topology/topology.h"
#include "services/agent/gpu_stage.h"
#include "services/agent/rank_desk.h"
#include "services/agent/tensor_memory.h"

namespace talweg::agent {

// Opens the machine's GPUs as configured: a test's fake ones, or NVIDIA's. Returns null if there
// are none or they are switched off; `why` then says which.
absl::StatusOr<std::unique_ptr<gpu::Platform>> OpenGpus(const config::AgentConfig& config,
                                                        std::string* why);

// Aborts each communicator on a thread of its own. A thread that never ends outlives this object.
class ThreadGraveyard final : public Graveyard {
 public:
  uint64_t Bury(std::unique_ptr<gpu::Communicator> communicator) override;
  bool IsBuried(uint64_t name) override;

 private:
  uint64_t next_ = 1;
  std::map<uint64_t, std::shared_ptr<std::atomic<bool>>> done_;
};

// Connects the GpuStage with the agent's RankDesk and its TensorMemory. Owned by the data thread.
class GpuFront final : public RankDevices, private HostTensors {
 public:
  // `memory` and `events` outlive this object. `watch_own_ns`: as in GpuStageOptions.
  GpuFront(std::unique_ptr<gpu::Platform> platform, int64_t watch_own_ns,
           const TensorMemory* memory, GpuEvents* events)
      : memory_(memory),
        platform_(std::move(platform)),
        stage_({.topology = topology::ReadTopology().value_or(topology::Topology()),
                .watch_own_ns = watch_own_ns},
               *platform_, *this, graveyard_, *events) {}

  GpuStage& stage() { return stage_; }
  const GpuStage& stage() const { return stage_; }

  // RankDevices
  absl::StatusOr<shm::Exported> Export(LocalRank rank, const shm::RankExport& given) override;
  absl::Status Unexport(LocalRank rank, uint32_t request, uint32_t buffer) override;
  absl::StatusOr<shm::Placed> Place(LocalRank rank, pipeline::TensorIndex tensor,
                                    uint32_t buffer) override;
  absl::Status Push(LocalRank rank, pipeline::TensorIndex tensor, Round round, int32_t priority,
                    const shm::DevicePlace& place) override;

 private:
  const pipeline::TensorSpec& Spec(pipeline::TensorIndex tensor) const override {
    return memory_->spec(tensor);
  }
  std::span<std::byte> Writable(const pipeline::SliceBytes& slice) const override {
    return memory_->Writable(slice);
  }
  std::span<const std::byte> Contribution(const pipeline::SliceBytes& slice,
                                          LocalRank rank) const override {
    return memory_->Contribution(slice, rank);
  }
  std::span<std::byte> PinnableSend(pipeline::TensorIndex tensor) const override {
    return memory_->SendBuffer(tensor);
  }
  std::array<std::span<std::byte>, 2> PinnableResults(pipeline::TensorIndex tensor) const override {
    return memory_->ResultPages(tensor);
  }

  const TensorMemory* const memory_;
  const std::unique_ptr<gpu::Platform> platform_;
  ThreadGraveyard graveyard_;
  GpuStage stage_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_FRONT_H_
