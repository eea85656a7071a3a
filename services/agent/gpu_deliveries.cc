// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_deliveries.h"

#include <algorithm>

#include "libs/status/status.h"

namespace talweg::agent {

absl::Status GpuDeliveries::Ask(int64_t now_ns, int* ended) {
  const std::vector<std::shared_ptr<GpuDelivery>> all(all_.begin(), all_.end());
  for (const std::shared_ptr<GpuDelivery>& delivery : all) {
    if (delivery->tasks > 0) continue;
    TALWEG_ASSIGN_OR_RETURN(const bool taken, IsTaken(*delivery, now_ns));
    if (!taken) continue;
    for (const LocalRank rank : delivery->ranks) gradients_.Close(rank, delivery->round.tensor);
    all_.remove(delivery);
    events_.OnDelivered(delivery->round);
    ++*ended;
  }
  return absl::OkStatus();
}

// Records each rank's `taken` once, when all can be recorded. After that it only queries them.
absl::StatusOr<bool> GpuDeliveries::IsTaken(GpuDelivery& delivery, int64_t now_ns) {
  std::vector<const GpuGradients::Part*> parts;
  for (const LocalRank rank : delivery.ranks) {
    if (delivery.round.status != pipeline::Status::kOk) continue;
    const GpuGradients::Part* const part = gradients_.FindPresent(rank, delivery.round.tensor);
    if (part == nullptr) continue;
    if (!part->ready) return false;  // Its events were lost.
    parts.push_back(part);
  }
  if (!delivery.recorded) TALWEG_RETURN_IF_ERROR(RecordTaken(delivery, parts, now_ns));
  bool done = true;
  for (const GpuGradients::Part* const part : parts) {
    TALWEG_ASSIGN_OR_RETURN(const bool asked, node_.DeviceOf(part->gpu).Query(part->taken));
    done = done && asked;
  }
  return done;
}

absl::Status GpuDeliveries::RecordTaken(GpuDelivery& delivery,
                                        const std::vector<const GpuGradients::Part*>& parts,
                                        int64_t now_ns) {
  for (const GpuGradients::Part* const part : parts) {
    const NodeGpu& gpu = node_.At(part->gpu);
    TALWEG_RETURN_IF_ERROR(gpu.device->Record(part->taken, gpu.signals));
  }
  delivery.recorded = true;
  delivery.recorded_ns = now_ns;
  delivery.wakes = false;
  return absl::OkStatus();
}

void GpuDeliveries::OnGpuLost() {
  for (const std::shared_ptr<GpuDelivery>& delivery : all_) {
    if (delivery->round.status == pipeline::Status::kOk) delivery->recorded = false;
  }
}

bool GpuDeliveries::WakeWhenTaken(GpuDelivery& delivery) {
  if (!delivery.recorded) return true;  // It waits for ranks.
  delivery.wakes =
      delivery.wakes ||
      std::all_of(delivery.ranks.begin(), delivery.ranks.end(), [&](const LocalRank rank) {
        const GpuGradients::Part* const part = gradients_.FindPresent(rank, delivery.round.tensor);
        return part == nullptr || node_.DeviceOf(part->gpu).WakeWhenDone(part->taken).ok();
      });
  return delivery.wakes;
}

std::optional<int64_t> GpuDeliveries::PrepareToSleep(int64_t now_ns) {
  std::optional<int64_t> at_ns;
  for (const std::shared_ptr<GpuDelivery>& delivery : all_) {
    if (delivery->tasks > 0) continue;
    const bool is_recent =
        delivery->recorded && now_ns - delivery->recorded_ns < options_.watch_own_ns;
    if (is_recent) return now_ns;
    if (!WakeWhenTaken(*delivery)) at_ns = now_ns + options_.ask_launch_every_ns;
  }
  return at_ns;
}

}  // namespace talweg::agent
