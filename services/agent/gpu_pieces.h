// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_PIECES_H_
#define TALWEG_SERVICES_AGENT_GPU_PIECES_H_

#include <absl/status/status.h>

#include <span>

#include "libs/gpu/device.h"
#include "services/agent/gpu_collectives.h"
#include "services/agent/gpu_home_pieces.h"
#include "services/agent/gpu_lane.h"
#include "services/agent/gpu_surroundings.h"

namespace talweg::agent {

// What a lane posts for its piece on each path, and what the host adds to it. An error is the
// GPUs'. Owned by the data thread.
class GpuPieces {
 public:
  // All outlive it. Counts the bytes that it stages.
  GpuPieces(const HostTensors& host, GpuCollectives& collectives, LaneStreams& streams,
            GpuHomePieces& homes, GpuStageCounters& counters)
      : host_(host),
        collectives_(collectives),
        streams_(streams),
        homes_(homes),
        counters_(counters) {}

  // The piece's first work: all of it, unless it takes the collective path.
  absl::Status Post(Lane& lane);
  // When that is done, and the communicators are ready.
  absl::Status PostCollective(Lane& lane);
  // When that is done.
  absl::Status PostAfterCollective(Lane& lane);

  // ----- When what was posted is done. -----

  // The host path's sum.
  void CombineOnHost(Lane& lane);
  // Adds the groups' sums, which lie in shards of their own sizes.
  void AddGroups(Lane& lane);
  // Staging memory's bytes to the tensor: a collective's shards, or what came down from a home.
  void CopyShards(Lane& lane);
  void CopyMirrored(Lane& lane);

 private:
  absl::Status PostKernel(Lane& lane);
  absl::Status PostToHost(Lane& lane);
  absl::Status PostDirect(Lane& lane);
  absl::Status PostLocalSums(Lane& lane);
  absl::Status PostShardsDown(Lane& lane);
  absl::Status PostShardsUp(Lane& lane);
  // Bytes that a GPU can copy from: the given ones where they lie, or a copy of them.
  std::span<const std::byte> Stage(const Lane& lane, const LanePart& part,
                                   std::span<const std::byte> source);
  // The piece's bytes on the host.
  std::span<std::byte> HostBytes(const Lane& lane) const { return host_.Writable(lane.bytes()); }

  const HostTensors& host_;
  GpuCollectives& collectives_;
  LaneStreams& streams_;
  GpuHomePieces& homes_;
  GpuStageCounters& counters_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_PIECES_H_
