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

// A piece goes one of five ways:
enum class LanePath : uint8_t {
  // Ranks that share a GPU: one kernel, then a copy to the host; in place, and no copy, when no
  // other node takes part.
  kKernel,
  // Among GPUs: local sums, reduce-scatter, each shard to the host; or each shard from the host,
  // all-gather; or an all-reduce when no other node takes part.
  kCollective,
  // Every rank's bytes to the host, and summed there: for what the others cannot do.
  kHost,
  // The result from the host to every GPU.
  kDirect,
  // On the GPU: to where a NIC reads it, or the result from where it was written.
  kStay,
};

enum class LaneStep : uint8_t {
  kFree,
  kAwaitCommunicator,
  kLaunching,
  kCollective,
  kCopying,
  kDraining,  // Its piece goes back to its task when what was posted is done.
};

// A stream on every GPU with its staging buffers (LanePart). It has one piece of a task at a time.
struct Lane {
  size_t index = 0;  // Its part on each GPU has it, too.
  LaneStep step = LaneStep::kFree;
  LanePath path = LanePath::kHost;
  std::shared_ptr<GpuTask> task;
  GpuRange range;
  GpuSet gpus;  // The GPUs that it works on.
  // A collective's GPUs: those of each group, in the order in which the groups' sums are added.
  std::vector<GpuSet> groups;
  int64_t deadline_ns = 0;
  int64_t posted_ns = 0;  // When what it waits for was posted.
  bool through_staging = false;
  bool wakes = false;         // When what is recorded is done.
  bool writes_ranks = false;  // Copies into tensors of ranks have been posted.
  // Between GPUs through the host: what was brought down is on its way up. That is a sum that the
  // host made for a NIC that reads the GPU, or a NIC's result for ranks on other GPUs.
  bool goes_up = false;

  bool is_free() const { return step == LaneStep::kFree; }
  // A collective is launched, or at work: it may hang.
  bool is_in_collective() const {
    return step == LaneStep::kLaunching || step == LaneStep::kCollective;
  }
  uint64_t elements() const { return range.length / DTypeSize(task->dtype); }
  pipeline::SliceBytes bytes() const { return task->Bytes(range); }
  // The host adds up its result: it goes there, and nowhere else.
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

// What lanes have on GPUs: a lane's stream on each, with its event and its staging. Owned by the
// data thread.
class LaneStreams {
 public:
  // Both outlive it.
  LaneStreams(GpuNode& node, const GpuLosses& losses) : node_(node), losses_(losses) {}

  gpu::Device& DeviceOf(const gpu::GpuUuid& uuid) { return node_.DeviceOf(uuid); }
  LanePart& PartOf(const Lane& lane, const gpu::GpuUuid& uuid) {
    return node_.At(uuid).lanes[lane.index];
  }

  // What was posted on its streams up to now is what it waits for.
  absl::Status Record(Lane& lane, int64_t now_ns);
  absl::StatusOr<bool> IsDone(const Lane& lane);
  // Has the GPUs wake this thread when it is done. False: one cannot.
  bool WakeWhenDone(Lane& lane);

  // On the host path each rank's bytes have their own part of their GPU's staging buffer.
  std::span<std::byte> StagedInput(const Lane& lane, size_t input);

  // Copies to the ranks' tensors on that GPU: from the host to the first, and from it to the
  // others.
  absl::Status CopyUpToRanks(const Lane& lane, const gpu::GpuUuid& uuid,
                             std::span<const std::byte> source);
  absl::Status CopyToRanks(Lane& lane, const gpu::GpuUuid& uuid, gpu::DeviceSpan source);

 private:
  GpuNode& node_;
  const GpuLosses& losses_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_LANE_H_
