// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_LOSSES_H_
#define TALWEG_SERVICES_AGENT_GPU_LOSSES_H_

#include <absl/status/status.h>

#include <algorithm>
#include <cstdint>
#include <map>

#include "services/agent/gpu_node.h"

namespace talweg::agent {

// The GPUs that are lost to this agent, because a fault has ended its context there. Each is here
// from then until it is open again, with when it is tried, and when it is given up.
class GpuLosses {
 public:
  explicit GpuLosses(const GpuStageOptions& options) : options_(options) {}

  void Add(const gpu::GpuUuid& uuid, const absl::Status& why, int64_t now_ns) {
    lost_[uuid] = {.why = why, .since_ns = now_ns};
  }
  // It is open again, or nobody uses it any more.
  void Remove(const gpu::GpuUuid& uuid) { lost_.erase(uuid); }
  // Whether the lost context is gone, with what was pinned in it.
  void SetClosed(const gpu::GpuUuid& uuid, bool closed) { lost_.at(uuid).closed = closed; }
  // It was tried to be opened, which has failed.
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
  // Nothing is pinned in a lost context any more.
  bool AreClosed() const {
    return std::all_of(lost_.begin(), lost_.end(), [](const auto& at) { return at.second.closed; });
  }
  bool IsDue(const gpu::GpuUuid& uuid, int64_t now_ns) const {
    return now_ns >= lost_.at(uuid).retry_at_ns;
  }
  // It has been lost for so long that the job ends here.
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
