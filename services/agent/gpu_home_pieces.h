// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_HOME_PIECES_H_
#define TALWEG_SERVICES_AGENT_GPU_HOME_PIECES_H_

#include <absl/status/status.h>

#include <span>
#include <vector>

#include "libs/gpu/device.h"
#include "services/agent/gpu_collectives.h"
#include "services/agent/gpu_lane.h"

namespace talweg::agent {

// Posts the work of lanes for tensors that a NIC reads and writes on one GPU, their home. Among
// GPUs, a sum is reduced to the home, and the result is broadcast from there. On the host path, a
// result is copied down from the home, and a sum is copied up to it. An error is the GPUs'. Owned
// by the data thread.
class GpuHomePieces {
 public:
  // Both outlive this object.
  GpuHomePieces(GpuCollectives& collectives, LaneStreams& streams)
      : collectives_(collectives), streams_(streams) {}

  // Returns the piece's bytes at the home.
  static gpu::DeviceSpan Bytes(const Lane& lane) { return lane.task->home->Bytes(lane.bytes()); }

  // Copies a single rank's bytes to where the NIC reads them, or a result from where the NIC wrote
  // it.
  absl::Status PostStay(Lane& lane);

  // Returns where the host writes its sum: in the staging buffer, after the inputs.
  std::span<std::byte> HostSum(const Lane& lane);
  // Copies that sum to the home.
  absl::Status PostSumUp(Lane& lane);
  // Copies a result from the home to staging memory.
  absl::Status PostMirror(Lane& lane);
  std::span<const std::byte> Mirrored(const Lane& lane);
  // Copies the result from staging memory to the ranks, for ranks on GPUs that a broadcast cannot
  // reach.
  absl::Status PostMirrorUp(Lane& lane);

  // Collectives never touch the NIC's memory: a collective that hangs may still write when it is
  // aborted, over bytes that were sent meanwhile. So the home copies its bytes after each sum, and
  // before each broadcast.
  absl::Status PostFromHome(Lane& lane);
  absl::Status PostCollective(Lane& lane, const GpuSet& group,
                              const std::vector<gpu::CollectivePart>& parts);
  absl::Status PostToHome(Lane& lane);

 private:
  static const gpu::GpuUuid& HomeOf(const Lane& lane) { return lane.task->home->gpu; }

  GpuCollectives& collectives_;
  LaneStreams& streams_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_HOME_PIECES_H_
