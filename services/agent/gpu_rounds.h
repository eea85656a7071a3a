// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_ROUNDS_H_
#define TALWEG_SERVICES_AGENT_GPU_ROUNDS_H_

#include <absl/status/status.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>

#include "services/agent/device_rounds.h"
#include "services/agent/gpu_front.h"
#include "services/agent/job_link.h"
#include "services/agent/registrar.h"

namespace talweg::agent {

// DeviceRounds by a GpuStage. Decides which tensors a NIC sends from the GPU, and registers their
// memory with the network. Owned by the data thread.
class GpuRounds final : public DeviceRounds {
 public:
  struct Options {
    uint32_t rank_count = 1;
    bool direct_wanted = false;  // gpu_direct=auto.
  };
  // Both outlive this object.
  GpuRounds(const Options& options, GpuFront* gpus, Registrar* registrar)
      : options_(options), gpus_(gpus), registrar_(registrar) {}
  // Call it before the first tensor.
  void SetLink(JobLink* link) { link_ = link; }

  // --- DeviceRounds
  bool TakesPart(pipeline::TensorIndex tensor, Round round) const override {
    return gpus_->stage().TakesPart(tensor, round);
  }
  void Reduce(const pipeline::ReduceSlice& reduce) override { gpus_->stage().Reduce(reduce); }
  void Deliver(const pipeline::CompleteRound& round) override { gpus_->stage().Deliver(round); }
  void Abandon() override { gpus_->stage().Abandon(); }
  void OnRankLeft(LocalRank rank) override { gpus_->stage().OnRankLeft(rank); }
  bool IsIdle() const override { return gpus_->stage().IsIdle(); }
  void ForgetTensors() override { gpus_->stage().ForgetTensors(); }
  std::optional<TensorMemory::NicRegions> MakeDirect(
      const pipeline::AllocateTensor& effect) override;
  void DropDirect(pipeline::TensorIndex tensor) override { gpus_->stage().DropDirect(tensor); }
  absl::Status StoreResult(const pipeline::SliceBytes& slice,
                           std::span<const std::byte> bytes) override {
    return gpus_->stage().StoreResult(slice, bytes);
  }
  absl::Status FetchResult(const pipeline::SliceBytes& slice, std::span<std::byte> bytes) override {
    return gpus_->stage().FetchResult(slice, bytes);
  }
  int Poll(int64_t now_ns) override { return gpus_->stage().Poll(now_ns); }
  std::optional<int64_t> PrepareToSleep() override { return gpus_->stage().PrepareToSleep(); }

 private:
  void NoteNotDirect(const absl::Status& why);

  const Options options_;
  GpuFront* const gpus_;
  Registrar* const registrar_;
  JobLink* link_ = nullptr;
  bool any_direct_ = false;
  bool direct_off_ = false;  // No further tensor gets memory for a NIC.
  std::set<absl::StatusCode> not_direct_noted_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_ROUNDS_H_
