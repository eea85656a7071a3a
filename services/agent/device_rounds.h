// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_DEVICE_ROUNDS_H_
#define TALWEG_SERVICES_AGENT_DEVICE_ROUNDS_H_

#include <absl/status/status.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "libs/pipeline/effects.h"
#include "services/agent/tensor_memory.h"

namespace talweg::agent {

// The work that GPUs do for this node's rounds. Owned by the data thread.
class DeviceRounds {
 public:
  virtual ~DeviceRounds() = default;

  virtual bool TakesPart(pipeline::TensorIndex tensor, Round round) const = 0;
  // The device calls ByteWork::OnReduced when it is done.
  virtual void Reduce(const pipeline::ReduceSlice& reduce) = 0;
  // The device calls AgentDriver::FinishRound when it is done.
  virtual void Deliver(const pipeline::CompleteRound& round) = 0;
  // The job has failed. Ends all work.
  virtual void Abandon() = 0;
  virtual void OnRankLeft(LocalRank rank) = 0;
  virtual bool IsIdle() const = 0;
  // Only when IsIdle().
  virtual void ForgetTensors() = 0;

  // Returns the memory on a GPU through which a NIC sends and receives the tensor, or nullopt if it
  // goes through the host (docs/gpu.md, "GPUDirect").
  virtual std::optional<TensorMemory::NicRegions> MakeDirect(
      const pipeline::AllocateTensor& tensor) = 0;
  virtual void DropDirect(pipeline::TensorIndex tensor) = 0;
  virtual absl::Status StoreResult(const pipeline::SliceBytes& slice,
                                   std::span<const std::byte> bytes) = 0;
  virtual absl::Status FetchResult(const pipeline::SliceBytes& slice,
                                   std::span<std::byte> bytes) = 0;

  virtual int Poll(int64_t now_ns) = 0;
  // Returns when Poll must be called at the latest.
  virtual std::optional<int64_t> PrepareToSleep() = 0;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_DEVICE_ROUNDS_H_
