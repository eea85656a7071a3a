// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_rounds.h"

#include <utility>

#include "libs/status/status.h"
#include "libs/telemetry/log.h"
#include "libs/transport/transport.h"

namespace talweg::agent {
namespace {

absl::StatusOr<TensorMemory::NicRegions> RegisterDirect(Registrar& registrar,
                                                        const GpuStage::DirectMemory& memory) {
  const auto named = [](const gpu::NicMemory& part) {
    return transport::DeviceMemory{.address = part.address,
                                   .bytes = part.bytes,
                                   .device = part.device,
                                   .dma_buf = part.dma_buf.get()};
  };
  TensorMemory::NicRegions regions;
  TALWEG_ASSIGN_OR_RETURN(regions.send, registrar.RegisterDevice(named(memory.send)));
  for (size_t parity = 0; parity < 2; ++parity) {
    TALWEG_ASSIGN_OR_RETURN(regions.results[parity],
                            registrar.RegisterDevice(named(memory.results[parity])));
  }
  return regions;
}

}  // namespace

void GpuRounds::NoteNotDirect(const absl::Status& why) {
  if (absl::IsOutOfRange(why)) return;  // True of most tensors, or of all.
  if (absl::IsUnimplemented(why)) direct_off_ = true;
  if (!not_direct_noted_.insert(why.code()).second) return;
  telemetry::Log(telemetry::LogLevel::kInfo, "GPUDirect: ",
                 direct_off_ ? "not used: " : "not for some tensors: ", why.message());
}

std::optional<TensorMemory::NicRegions> GpuRounds::MakeDirect(
    const pipeline::AllocateTensor& effect) {
  if (direct_off_ || !options_.direct_wanted) return std::nullopt;
  if (const absl::Status takes = registrar_->TakesDeviceMemory(); !takes.ok()) {
    NoteNotDirect(takes);
    return std::nullopt;
  }
  if (link_->AnyLocal()) {
    NoteNotDirect(absl::FailedPreconditionError(
        "an aggregator is reached through this host's memory, as --local_transport allows"));
    return std::nullopt;
  }
  GpuStage& stage = gpus_->stage();
  const auto memory = stage.MakeDirect(effect.tensor, effect.spec, options_.rank_count);
  if (!memory.ok()) {
    NoteNotDirect(memory.status());
    return std::nullopt;
  }
  auto regions = RegisterDirect(*registrar_, *memory);
  if (!regions.ok()) {
    stage.DropDirect(effect.tensor);
    direct_off_ = true;  // The next tensor would fail for the same reason.
    NoteNotDirect(regions.status());
    return std::nullopt;
  }
  if (!std::exchange(any_direct_, true)) {
    telemetry::Log(telemetry::LogLevel::kInfo, "GPUDirect: used, from tensor '", effect.spec.name,
                   "' on");
  }
  // Shared memory could not carry the tensor to an aggregator that comes to this host later.
  link_->UseNetworkOnly();
  return *std::move(regions);
}

}  // namespace talweg::agent
