// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_BUFFERS_H_
#define TALWEG_SERVICES_AGENT_GPU_BUFFERS_H_

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "libs/base/ids.h"
#include "libs/gpu/device.h"
#include "services/agent/gpu_losses.h"
#include "services/agent/gpu_node.h"

namespace talweg::agent {

// Memory on GPUs that ranks have exported, mapped here. A rank is known from its first buffer until
// it has left and nothing needs its memory. Owned by the data thread.
class GpuBuffers {
 public:
  struct Buffer {
    gpu::GpuUuid gpu;
    uint64_t buffer_id = 0;
    gpu::MemoryHandle handle;
    gpu::DeviceSpan span;
    bool leaving = false;
    uint32_t leave_request = 0;
  };

  // Both outlive it.
  GpuBuffers(GpuNode& node, const GpuLosses& losses) : node_(node), losses_(losses) {}

  // UNAVAILABLE: the process that was this rank before has not gone yet.
  absl::Status MayExport(LocalRank rank) const;
  struct Exported {
    uint32_t buffer = 0;
    uint64_t bytes = 0;
  };
  // The rank may, and the GPU is open and not lost.
  absl::StatusOr<Exported> Export(LocalRank rank, const gpu::GpuUuid& uuid, uint64_t buffer_id,
                                  const gpu::MemoryHandle& handle);
  // INVALID_ARGUMENT: it has not exported this one, or gives it back already.
  absl::StatusOr<const Buffer*> Get(LocalRank rank, uint32_t number) const;
  // Null instead of that.
  const Buffer* Find(LocalRank rank, uint32_t number) const;

  // ----- Giving back. -----

  // The buffer is no longer the rank's to use. `request` is what the answer names.
  void Unexport(LocalRank rank, uint32_t request, uint32_t number);
  struct Leaving {
    LocalRank rank;
    uint32_t number = 0;
    uint32_t request = 0;
    gpu::GpuUuid gpu;
  };
  // Those that nothing needs any more. Release may wait for their GPUs.
  std::vector<Leaving> GivenBack() const;
  void Release(const Leaving& buffer);

  void OnRankLeft(LocalRank rank);
  // The ranks that have left and whose memory no task needs.
  std::vector<LocalRank> Finished() const;
  // The rank is gone. May wait for its GPUs.
  void Release(LocalRank rank);

  // While a task needs its memory.
  void Hold(LocalRank rank) { ++ranks_.at(rank).tasks; }
  void LetGo(LocalRank rank) { --ranks_.at(rank).tasks; }

  // ----- A GPU that was lost. -----

  // Maps what lies on it anew.
  absl::Status MapAgain(const gpu::GpuUuid& uuid);

  // ----- To look at. -----

  bool empty() const { return ranks_.empty(); }
  bool Knows(LocalRank rank) const { return ranks_.contains(rank); }
  // It is known and has not left.
  bool IsHere(LocalRank rank) const;
  // Also those that are given back.
  const std::optional<Buffer>& At(LocalRank rank, uint32_t number) const {
    return ranks_.at(rank).buffers[number];
  }
  GpuSet GpusOf(LocalRank rank) const;
  bool Use(const gpu::GpuUuid& uuid) const;
  // The ranks that are here and have memory on it.
  std::vector<LocalRank> RanksOn(const gpu::GpuUuid& uuid) const;
  void AddGpus(std::set<gpu::GpuUuid>& uuids) const;
  struct Spread {
    GpuSet gpus;
    uint32_t ranks = 0;
  };
  // Where the ranks that are here have memory, and how many have any.
  Spread PresentSpread() const;

 private:
  struct Rank {
    Incarnation life;
    std::vector<std::optional<Buffer>> buffers;
    bool left = false;
    uint32_t tasks = 0;  // How many need its memory.
  };
  static bool Uses(const Rank& rank, const gpu::GpuUuid& uuid);

  GpuNode& node_;
  const GpuLosses& losses_;
  std::map<LocalRank, Rank> ranks_;
  uint64_t next_life_ = 1;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_BUFFERS_H_
