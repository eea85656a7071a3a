// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_DELIVERIES_H_
#define TALWEG_SERVICES_AGENT_GPU_DELIVERIES_H_

#include <absl/status/statusor.h>

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "services/agent/gpu_gradients.h"
#include "services/agent/gpu_node.h"
#include "services/agent/gpu_surroundings.h"
#include "services/agent/gpu_tasks.h"

namespace talweg::agent {

// The rounds whose results are being copied to ranks. After a round's last copy, this class records
// each rank's `taken` event. The round is over when all of these events are done. Owned by the data
// thread.
class GpuDeliveries {
 public:
  // All outlive this object.
  GpuDeliveries(const GpuStageOptions& options, GpuNode& node, GpuEvents& events,
                GpuGradients& gradients)
      : options_(options), node_(node), events_(events), gradients_(gradients) {}

  void Add(std::shared_ptr<GpuDelivery> delivery) { all_.push_back(std::move(delivery)); }
  void Abandon() { all_.clear(); }
  bool empty() const { return all_.empty(); }

  // Ends the deliveries that are done, and calls OnDelivered for each. Returns the error of a GPU;
  // the deliveries after it are asked next time.
  absl::Status Ask(int64_t now_ns, int* ended);
  // A GPU was lost, perhaps with `taken` events: Ask records them again. Failed rounds need none.
  void OnGpuLost();
  // Call it before sleeping. Has the GPUs wake this thread. Returns when Ask must be called at the
  // latest.
  std::optional<int64_t> PrepareToSleep(int64_t now_ns);

 private:
  absl::StatusOr<bool> IsTaken(GpuDelivery& delivery, int64_t now_ns);
  absl::Status RecordTaken(GpuDelivery& delivery,
                           const std::vector<const GpuGradients::Part*>& parts, int64_t now_ns);
  bool WakeWhenTaken(GpuDelivery& delivery);

  const GpuStageOptions& options_;
  GpuNode& node_;
  GpuEvents& events_;
  GpuGradients& gradients_;
  std::list<std::shared_ptr<GpuDelivery>> all_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_DELIVERIES_H_
