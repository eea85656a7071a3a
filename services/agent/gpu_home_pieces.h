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

// What lanes post for tensors that a NIC has on one GPU, their home. Among GPUs a sum is reduced to
// the home, and the result broadcast from there. On the host path it comes down from the home, or
// goes up to it. An error is the GPUs'. Owned by the data thread.
class GpuHomePieces {
 public:
  // Both outlive it.
  GpuHomePieces(GpuCollectives& collectives, LaneStreams& streams)
      : collectives_(collectives), streams_(streams) {}

  // The piece's bytes at home.
  static gpu::DeviceSpan Bytes(const Lane& lane) { return lane.task->home->Bytes(lane.bytes()); }

  // Copies a single rank's bytes to where the NIC reads them, or a result from where the NIC wrote
  // it.
  absl::Status PostStay(Lane& lane);

  // Where the host puts a sum that it makes: after its inputs.
  std::span<std::byte> HostSum(const Lane& lane);
  // That sum to the home.
  absl::Status PostSumUp(Lane& lane);
  // A result to staging memory.
  absl::Status PostMirror(Lane& lane);
  std::span<const std::byte> Mirrored(const Lane& lane);
  // It from there to the ranks: for those on other GPUs, to which it cannot be broadcast.
  absl::Status PostMirrorUp(Lane& lane);

  // Collectives never touch what a NIC has. One that hangs may write when it is aborted, over what
  // was sent meanwhile. So there is a copy at home after each sum, and before each broadcast.
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
