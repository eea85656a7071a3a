// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_SURROUNDINGS_H_
#define TALWEG_SERVICES_AGENT_GPU_SURROUNDINGS_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "libs/base/ids.h"
#include "libs/pipeline/effects.h"

// What GpuStage reads from the agent around it, and the events that it sends to it.
namespace talweg::agent {

// The host memory of this node's tensors, by the core's indices (TensorMemory).
class HostTensors {
 public:
  virtual ~HostTensors() = default;
  virtual const pipeline::TensorSpec& Spec(pipeline::TensorIndex tensor) const = 0;
  virtual std::span<std::byte> Writable(const pipeline::SliceBytes& slice) const = 0;
  // Returns the contribution of a rank that pushed from host memory.
  virtual std::span<const std::byte> Contribution(const pipeline::SliceBytes& slice,
                                                  LocalRank rank) const = 0;
  // Return the send buffer, and the results by parity of the round. If they can be pinned, GPUs
  // copy to and from them directly. May be empty.
  virtual std::span<std::byte> PinnableSend(pipeline::TensorIndex tensor) const = 0;
  virtual std::array<std::span<std::byte>, 2> PinnableResults(
      pipeline::TensorIndex tensor) const = 0;
};

// The stage's events. The stage calls OnGpuFailed inside any call, the others inside Poll. They may
// call the stage, but not Poll.
class GpuEvents {
 public:
  virtual ~GpuEvents() = default;
  // The gradient is ready. For the core this is the push.
  virtual void OnGradientReady(LocalRank rank, pipeline::TensorIndex tensor, Round round,
                               int32_t priority) = 0;
  virtual bool ReduceWanted(uint64_t ticket) = 0;
  virtual void OnReduced(uint64_t ticket, uint64_t bytes) = 0;
  // The round's result lies in the tensors of all ranks that pushed it from a GPU.
  virtual void OnDelivered(const pipeline::CompleteRound& round) = 0;
  virtual void OnUnexported(LocalRank rank, uint32_t request) = 0;
  // The events of the rank's tensors are void. The rank has to place the tensors again, and to push
  // its open rounds again.
  virtual void OnEventsLost(LocalRank rank) = 0;
  // This node cannot go on.
  virtual void OnGpuFailed(const std::string& text) = 0;
  virtual void OnGpuNote(const std::string& text) = 0;  // For people.
};

struct GpuStageCounters {
  uint64_t pieces_by_kernel = 0;      // Summed by a kernel, for ranks that share a GPU.
  uint64_t pieces_by_collective = 0;  // Among GPUs.
  uint64_t pieces_by_groups = 0;      // Those of pieces_by_collective that the host added up.
  uint64_t pieces_by_host = 0;        // Copied to the host, and combined there.
  uint64_t pieces_direct = 0;         // Those of all that a NIC reads or wrote.
  uint64_t pieces_delivered = 0;
  uint64_t bytes_staged = 0;  // Copied to or from staging buffers by this thread.
  uint64_t collectives_failed = 0;
  uint64_t gpus_reopened = 0;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_SURROUNDINGS_H_
