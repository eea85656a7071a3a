// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_LANE_H_
#define TALWEG_SERVICES_AGENT_GPU_LANE_H_

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "libs/gpu/device.h"
#include "services/agent/gpu_losses.h"
#include "services/agent/gpu_node.h"
#include "services/agent/gpu_tasks.h"

namespace talweg::agent {

// A piece takes one of five paths:
enum class LanePath : uint8_t {
  // For ranks that share a GPU: one kernel, then a copy to the host. If no other node takes part,
  // the kernel sums in place, without a copy.
  kKernel,
  // For ranks on several GPUs. To sum: a local sum on each GPU, a reduce-scatter, and a copy of
  // each shard to the host. To deliver: a copy of each shard from the host, and an all-gather. If
  // no other node takes part: an all-reduce instead of both.
  kCollective,
  // Copies every rank's bytes to the host, which sums them: for pieces that no other path can do.
  kHost,
  // Copies the result from the host to every GPU.
  kDirect,
  // Copies on the GPU: to where a NIC reads, or the result from where a NIC wrote it.
  kStay,
};

enum class LaneStep : uint8_t {
  kFree,
  kAwaitCommunicator,
  kLaunching,
  kCollective,
  kCopying,
  kDraining,  // When what was posted is done, the piece goes back to its task.
};

// A stream on every GPU with its staging buffers (LanePart). It has one piece of a task at a time.
struct Lane {
  size_t index = 0;  // Also the index of its part on each GPU.
  LaneStep step = LaneStep::kFree;
  LanePath path = LanePath::kHost;
  std::shared_ptr<GpuTask> task;
  GpuRange range;
  GpuSet gpus;  // The GPUs that the lane works on.
  // A collective's groups of GPUs, in the order in which the groups' sums are added.
  std::vector<GpuSet> groups;
  int64_t deadline_ns = 0;
  int64_t posted_ns = 0;  // When the work that the lane waits for was posted.
  bool through_staging = false;
  bool wakes = false;         // The GPUs wake this thread when the recorded events are done.
  bool writes_ranks = false;  // Copies into tensors of ranks have been posted.
  // The host's bytes are on their way up to a GPU: a sum that the host made for a NIC that reads
  // the GPU, or a NIC's result for ranks on other GPUs.
  bool goes_up = false;

  bool is_free() const { return step == LaneStep::kFree; }
  // Returns whether a collective of the lane launches or runs. It may hang.
  bool is_in_collective() const {
    return step == LaneStep::kLaunching || step == LaneStep::kCollective;
  }
  uint64_t elements() const { return range.length / DTypeSize(task->dtype); }
  pipeline::SliceBytes bytes() const { return task->Bytes(range); }
  // Returns whether the host adds the groups' sums. The result then lies on the host only.
  bool adds_groups() const {
    return path == LanePath::kCollective && groups.size() > 1 && !task->delivers;
  }

  // The bytes of a piece that one GPU of a group holds after the group's reduce-scatter.
  struct Shard {
    gpu::GpuUuid gpu;
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  uint64_t ShardElements(const GpuSet& group) const {
    return (elements() + group.size() - 1) / group.size();
  }
  std::vector<Shard> ShardsOf(const GpuSet& group) const;
};

// What each lane has on each GPU: a stream with its event and its staging buffers. Owned by the
// data thread.
class LaneStreams {
 public:
  // Both outlive this object.
  LaneStreams(GpuNode& node, const GpuLosses& losses) : node_(node), losses_(losses) {}

  gpu::Device& DeviceOf(const gpu::GpuUuid& uuid) { return node_.DeviceOf(uuid); }
  LanePart& PartOf(const Lane& lane, const gpu::GpuUuid& uuid) {
    return node_.At(uuid).lanes[lane.index];
  }

  // Records the lane's events. The lane then waits for all work that was posted on its streams so
  // far.
  absl::Status Record(Lane& lane, int64_t now_ns);
  absl::StatusOr<bool> IsDone(const Lane& lane);
  // Has the GPUs wake this thread when the lane's work is done. Returns false if a GPU cannot.
  bool WakeWhenDone(Lane& lane);

  // On the host path each rank's bytes have a part of their own in the staging buffer of the rank's
  // GPU.
  std::span<std::byte> StagedInput(const Lane& lane, size_t input);

  // Copies to the ranks' tensors on that GPU: from the host to the first rank, and from that rank
  // to the others.
  absl::Status CopyUpToRanks(const Lane& lane, const gpu::GpuUuid& uuid,
                             std::span<const std::byte> source);
  absl::Status CopyToRanks(Lane& lane, const gpu::GpuUuid& uuid, gpu::DeviceSpan source);

 private:
  GpuNode& node_;
  const GpuLosses& losses_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_LANE_H_
