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

// Posts the work for a lane's piece on each path, and does the host's part of it. An error is the
// GPUs'. Owned by the data thread.
class GpuPieces {
 public:
  // All outlive this object, which counts the bytes that it stages in `counters`.
  GpuPieces(const HostTensors& host, GpuCollectives& collectives, LaneStreams& streams,
            GpuHomePieces& homes, GpuStageCounters& counters)
      : host_(host),
        collectives_(collectives),
        streams_(streams),
        homes_(homes),
        counters_(counters) {}

  // Posts the piece's first work. Only the collective path has more.
  absl::Status Post(Lane& lane);
  // Call it when that is done and the communicators are ready.
  absl::Status PostCollective(Lane& lane);
  // Call it when the collective is done.
  absl::Status PostAfterCollective(Lane& lane);

  // ----- When what was posted is done. -----

  // Makes the host path's sum.
  void CombineOnHost(Lane& lane);
  // Adds the groups' sums, which lie in shards of their own sizes.
  void AddGroups(Lane& lane);
  // Copy from staging memory to the tensor: a collective's shards, or bytes that came from a home.
  void CopyShards(Lane& lane);
  void CopyMirrored(Lane& lane);

 private:
  absl::Status PostKernel(Lane& lane);
  absl::Status PostToHost(Lane& lane);
  absl::Status PostDirect(Lane& lane);
  absl::Status PostLocalSums(Lane& lane);
  absl::Status PostShardsDown(Lane& lane);
  absl::Status PostShardsUp(Lane& lane);
  // Returns bytes that a GPU can copy from: `source` itself, or a copy of it in `part`.
  std::span<const std::byte> Stage(const Lane& lane, const LanePart& part,
                                   std::span<const std::byte> source);
  // Returns the piece's bytes on the host.
  std::span<std::byte> HostBytes(const Lane& lane) const { return host_.Writable(lane.bytes()); }

  const HostTensors& host_;
  GpuCollectives& collectives_;
  LaneStreams& streams_;
  GpuHomePieces& homes_;
  GpuStageCounters& counters_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_PIECES_H_
