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

// Memory on GPUs that ranks have exported, mapped into this process. A rank is known from its first
// buffer until it has left and no task needs its memory. Owned by the data thread.
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

  // Both outlive this object.
  GpuBuffers(GpuNode& node, const GpuLosses& losses) : node_(node), losses_(losses) {}

  // UNAVAILABLE: memory of the process that was this rank before is still in use.
  absl::Status MayExport(LocalRank rank) const;
  struct Exported {
    uint32_t buffer = 0;
    uint64_t bytes = 0;
  };
  // MayExport is OK, and the GPU is open and not lost.
  absl::StatusOr<Exported> Export(LocalRank rank, const gpu::GpuUuid& uuid, uint64_t buffer_id,
                                  const gpu::MemoryHandle& handle);
  // INVALID_ARGUMENT: the rank has not exported this buffer, or is giving it back.
  absl::StatusOr<const Buffer*> Get(LocalRank rank, uint32_t number) const;
  // The same, but returns null instead of INVALID_ARGUMENT.
  const Buffer* Find(LocalRank rank, uint32_t number) const;

  // ----- Giving back. -----

  // The rank gives the buffer back, and must not use it any more. The answer names `request`.
  void Unexport(LocalRank rank, uint32_t request, uint32_t number);
  struct Leaving {
    LocalRank rank;
    uint32_t number = 0;
    uint32_t request = 0;
    gpu::GpuUuid gpu;
  };
  // Returns the buffers that ranks gave back and no task needs. Release may wait for their GPUs.
  std::vector<Leaving> GivenBack() const;
  void Release(const Leaving& buffer);

  void OnRankLeft(LocalRank rank);
  // Returns the ranks that have left and whose memory no task needs.
  std::vector<LocalRank> Finished() const;
  // Forgets the rank and unmaps its memory. May wait for its GPUs.
  void Release(LocalRank rank);

  // A task calls Hold when it begins to need the rank's memory, and LetGo when it ends.
  void Hold(LocalRank rank) { ++ranks_.at(rank).tasks; }
  void LetGo(LocalRank rank) { --ranks_.at(rank).tasks; }

  // ----- A GPU that was lost. -----

  // Maps all buffers on the GPU again.
  absl::Status MapAgain(const gpu::GpuUuid& uuid);

  // ----- To look at. -----

  bool empty() const { return ranks_.empty(); }
  bool Knows(LocalRank rank) const { return ranks_.contains(rank); }
  // Returns whether the rank is known and has not left.
  bool IsHere(LocalRank rank) const;
  // Also returns buffers that the rank is giving back.
  const std::optional<Buffer>& At(LocalRank rank, uint32_t number) const {
    return ranks_.at(rank).buffers[number];
  }
  GpuSet GpusOf(LocalRank rank) const;
  bool Use(const gpu::GpuUuid& uuid) const;
  // Returns the ranks that are here and have memory on the GPU.
  std::vector<LocalRank> RanksOn(const gpu::GpuUuid& uuid) const;
  void AddGpus(std::set<gpu::GpuUuid>& uuids) const;
  struct Spread {
    GpuSet gpus;
    uint32_t ranks = 0;
  };
  // Returns the GPUs on which the ranks that are here have memory, and how many of these ranks have
  // any.
  Spread PresentSpread() const;

 private:
  struct Rank {
    Incarnation life;
    std::vector<std::optional<Buffer>> buffers;
    bool left = false;
    uint32_t tasks = 0;  // How many tasks need its memory.
  };
  static bool Uses(const Rank& rank, const gpu::GpuUuid& uuid);

  GpuNode& node_;
  const GpuLosses& losses_;
  std::map<LocalRank, Rank> ranks_;
  uint64_t next_life_ = 1;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_BUFFERS_H_
