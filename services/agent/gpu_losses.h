// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_LOSSES_H_
#define TALWEG_SERVICES_AGENT_GPU_LOSSES_H_

#include <absl/status/status.h>

#include <algorithm>
#include <cstdint>
#include <map>

#include "services/agent/gpu_node.h"

namespace talweg::agent {

// The GPUs that this agent has lost, because a fault has ended its context there. Each is listed
// until it is open again. Knows when to try to open each, and when to give up.
class GpuLosses {
 public:
  explicit GpuLosses(const GpuStageOptions& options) : options_(options) {}

  void Add(const gpu::GpuUuid& uuid, const absl::Status& why, int64_t now_ns) {
    lost_[uuid] = {.why = why, .since_ns = now_ns};
  }
  // The GPU is open again, or nobody uses it any more.
  void Remove(const gpu::GpuUuid& uuid) { lost_.erase(uuid); }
  // Whether the lost context is closed, and with it all memory that was pinned in it.
  void SetClosed(const gpu::GpuUuid& uuid, bool closed) { lost_.at(uuid).closed = closed; }
  // An attempt to open the GPU has failed.
  void OnTried(const gpu::GpuUuid& uuid, int64_t now_ns) {
    lost_.at(uuid).retry_at_ns = now_ns + options_.reopen_every_ns;
  }

  bool empty() const { return lost_.empty(); }
  bool Has(const gpu::GpuUuid& uuid) const { return lost_.contains(uuid); }
  bool HasAny(const GpuSet& gpus) const {
    return std::any_of(gpus.begin(), gpus.end(),
                       [this](const gpu::GpuUuid& uuid) { return Has(uuid); });
  }
  GpuSet all() const {
    GpuSet gpus;
    for (const auto& [uuid, lost] : lost_) gpus.push_back(uuid);
    return gpus;
  }
  const absl::Status& Why(const gpu::GpuUuid& uuid) const { return lost_.at(uuid).why; }
  bool IsClosed(const gpu::GpuUuid& uuid) const { return lost_.at(uuid).closed; }
  // Returns whether all lost contexts are closed: no memory is pinned in one.
  bool AreClosed() const {
    return std::all_of(lost_.begin(), lost_.end(), [](const auto& at) { return at.second.closed; });
  }
  bool IsDue(const gpu::GpuUuid& uuid, int64_t now_ns) const {
    return now_ns >= lost_.at(uuid).retry_at_ns;
  }
  // Returns whether the GPU has been lost for so long that this node cannot go on.
  bool IsOverdue(const gpu::GpuUuid& uuid, int64_t now_ns) const {
    return now_ns >= lost_.at(uuid).since_ns + options_.reopen_deadline_ns;
  }

 private:
  struct Lost {
    absl::Status why;
    bool closed = false;
    int64_t since_ns = 0;
    int64_t retry_at_ns = 0;
  };

  const GpuStageOptions& options_;
  std::map<gpu::GpuUuid, Lost> lost_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_LOSSES_H_
