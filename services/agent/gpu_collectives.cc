// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_collectives.h"

#include <algorithm>
#include <utility>

#include "libs/status/status.h"

namespace talweg::agent {

GpuCollectives::~GpuCollectives() {
  for (const Buried& buried : buried_) {
    if (graveyard_.IsBuried(buried.name)) continue;
    for (const gpu::GpuUuid& uuid : buried.gpus) ++node_.At(uuid).parts_aside;
  }
}

bool GpuCollectives::MayUse(const GpuSet& gpus, int64_t now_ns) {
  Entry& entry = entries_[gpus];
  if (entry.communicator != nullptr) return true;
  if (entry.unavailable || now_ns < entry.retry_at_ns) return false;
  for (const Buried& buried : buried_) {
    if (buried.gpus == gpus) return false;  // The old communicator must be gone first.
  }
  std::vector<gpu::Device*> devices;
  for (const gpu::GpuUuid& uuid : gpus) devices.push_back(node_.At(uuid).device.get());
  auto made = node_.platform().NewCommunicator(devices);
  if (!made.ok()) {
    entry.error = made.status();
    note_ = "sums among GPUs are made on the host: " + status::StatusText(made.status());
    if (absl::IsUnimplemented(made.status())) {
      entry.unavailable = true;
    } else {
      entry.backoff_ns =
          std::clamp(entry.backoff_ns * 2, options_.rebuild_first_ns, options_.rebuild_max_ns);
      entry.retry_at_ns = now_ns + entry.backoff_ns;
    }
    return false;
  }
  entry.communicator = *std::move(made);
  entry.started_ns = now_ns;
  entry.was_ready = false;
  return true;
}

bool GpuCollectives::MayUseAll(const std::vector<GpuSet>& groups, int64_t now_ns) {
  return std::all_of(groups.begin(), groups.end(), [&](const GpuSet& group) {
    return group.size() == 1 || MayUse(group, now_ns);
  });
}

GpuCollectives::Readiness GpuCollectives::Ask(const GpuSet& gpus, int64_t now_ns) {
  Entry& entry = entries_.at(gpus);
  if (entry.communicator == nullptr) return Readiness::kUnavailable;
  switch (entry.communicator->Poll()) {
    case gpu::Communicator::State::kReady: entry.was_ready = true; return Readiness::kReady;
    case gpu::Communicator::State::kBusy: break;
    case gpu::Communicator::State::kFailed:
      entry.error = entry.communicator->error();
      return Readiness::kFailed;
  }
  if (!entry.was_ready && now_ns >= entry.started_ns + options_.collective_deadline_ns) {
    entry.error = absl::UnavailableError("the communicator did not start in time");
    return Readiness::kFailed;
  }
  return Readiness::kBusy;
}

absl::Status GpuCollectives::Error(const GpuSet& gpus) const {
  const auto at = entries_.find(gpus);
  return at == entries_.end() ? absl::OkStatus() : at->second.error;
}

void GpuCollectives::Fail(const GpuSet& gpus, std::vector<std::pair<gpu::GpuUuid, LanePart>> aside,
                          int64_t now_ns) {
  Entry& entry = entries_[gpus];
  entry.backoff_ns =
      std::clamp(entry.backoff_ns * 2, options_.rebuild_first_ns, options_.rebuild_max_ns);
  entry.retry_at_ns = now_ns + entry.backoff_ns;
  if (entry.communicator == nullptr) return;
  buried_.push_back({.name = graveyard_.Bury(std::move(entry.communicator)),
                     .gpus = gpus,
                     .aside = std::move(aside)});
}

int GpuCollectives::Poll() {
  int freed = 0;
  for (Buried& buried : buried_) {
    if (!graveyard_.IsBuried(buried.name)) continue;
    // After the abort the streams go on. When these events are done, all work on the streams is
    // done.
    if (!std::exchange(buried.recorded, true)) {
      for (const auto& [uuid, part] : buried.aside) {
        node_.At(uuid).device->Record(part.done, part.stream).IgnoreError();
      }
    }
    std::erase_if(buried.aside, [&](const auto& entry) {
      NodeGpu& gpu = node_.At(entry.first);
      const auto done = gpu.device->Query(entry.second.done);
      if (done.ok() && !*done) return false;
      GpuNode::Drop(gpu, entry.second);
      --gpu.parts_aside;
      ++freed;
      return true;
    });
  }
  std::erase_if(buried_, [&](const Buried& buried) {
    return buried.aside.empty() && graveyard_.IsBuried(buried.name);
  });
  return freed;
}

bool GpuCollectives::Release(const gpu::GpuUuid& uuid) {
  const auto has = [&](const GpuSet& gpus) {
    return std::find(gpus.begin(), gpus.end(), uuid) != gpus.end();
  };
  for (auto& [gpus, entry] : entries_) {
    if (!has(gpus) || entry.communicator == nullptr) continue;
    buried_.push_back({.name = graveyard_.Bury(std::move(entry.communicator)), .gpus = gpus});
  }
  std::erase_if(entries_, [&](const auto& entry) { return has(entry.first); });
  return !IsEnding(uuid);
}

bool GpuCollectives::IsEnding(const gpu::GpuUuid& uuid) const {
  return std::any_of(buried_.begin(), buried_.end(), [&](const Buried& buried) {
    return std::find(buried.gpus.begin(), buried.gpus.end(), uuid) != buried.gpus.end();
  });
}

}  // namespace talweg::agent
