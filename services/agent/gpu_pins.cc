// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_pins.h"

#include <absl/strings/str_cat.h>

#include "libs/status/status.h"

namespace talweg::agent {

void GpuPins::Pin(pipeline::TensorIndex tensor, const gpu::GpuUuid& uuid) {
  if (pinned_.contains(tensor)) return;
  Pinned& pinned = pinned_[tensor];
  pinned.gpu = uuid;
  const auto pin = [&](std::span<std::byte> bytes, const char* what) {
    if (bytes.empty()) return false;
    const absl::Status status = node_.DeviceOf(uuid).RegisterHost(bytes);
    if (status.ok()) {
      pinned.spans.push_back(bytes);
    } else {
      events_.OnGpuNote(absl::StrCat(what, " of tensor '", host_.Spec(tensor).name,
                                     "' go through staging buffers: ", status::StatusText(status)));
    }
    return status.ok();
  };
  pinned.send = pin(host_.PinnableSend(tensor), "sums");
  const auto [even, odd] = host_.PinnableResults(tensor);
  pinned.results = pin(even, "results") && pin(odd, "results");
}

bool GpuPins::IsPinned(const pipeline::SliceBytes& slice) const {
  const auto at = pinned_.find(slice.tensor);
  if (at == pinned_.end()) return false;
  return slice.memory == pipeline::Memory::kResult ? at->second.results : at->second.send;
}

void GpuPins::Unpin(const Pinned& pinned) {
  for (const std::span<std::byte> bytes : pinned.spans) {
    node_.DeviceOf(pinned.gpu).UnregisterHost(bytes).IgnoreError();
  }
}

void GpuPins::UnpinAll() {
  for (const auto& [tensor, pinned] : pinned_) Unpin(pinned);
  pinned_.clear();
}

void GpuPins::UnpinOn(const gpu::GpuUuid& uuid) {
  for (const auto& [tensor, pinned] : pinned_) {
    if (pinned.gpu == uuid) Unpin(pinned);
  }
  Forget(uuid);
}

void GpuPins::Forget(const gpu::GpuUuid& uuid) {
  std::erase_if(pinned_, [&](const auto& entry) { return entry.second.gpu == uuid; });
}

}  // namespace talweg::agent
