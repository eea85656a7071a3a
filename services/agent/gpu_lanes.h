// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_LANES_H_
#define TALWEG_SERVICES_AGENT_GPU_LANES_H_

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "libs/gpu/device.h"
#include "services/agent/gpu_collectives.h"
#include "services/agent/gpu_home_pieces.h"
#include "services/agent/gpu_lane.h"
#include "services/agent/gpu_losses.h"
#include "services/agent/gpu_node.h"
#include "services/agent/gpu_paths.h"
#include "services/agent/gpu_pieces.h"
#include "services/agent/gpu_pins.h"
#include "services/agent/gpu_surroundings.h"
#include "services/agent/gpu_tasks.h"

namespace talweg::agent {

// The lanes. Each is free, or has a piece of a task and takes these steps:
//
//   kFree --Start--> kCopying --done--> kFree, or once more kCopying (what the host made goes up)
//   kFree --Start--> kAwaitCommunicator --ready--> kLaunching --launched--> kCollective --done-->
//   kCopying
//   any --Redo--> kDraining --done--> kFree
//
// After an error a lane keeps its step, and GpuFailures handles the error. Owned by the data
// thread.
class GpuLanes {
 public:
  // All outlive this object.
  GpuLanes(const GpuStageOptions& options, const HostTensors& host, GpuNode& node,
           GpuCollectives& collectives, const GpuLosses& losses, const GpuPins& pins,
           GpuTasks& tasks, GpuStageCounters& counters);

  std::vector<Lane>& all() { return lanes_; }

  // Gives the free lane the next piece that may start. Returns false if there is none. After an
  // error, which is the piece's, the lane has the piece.
  absl::StatusOr<bool> Start(Lane& lane, int64_t now_ns);

  enum class Trouble : uint8_t {
    kNone,
    kPiece,         // The piece's work failed, or could not be posted.
    kCommunicator,  // `group` has failed.
    kOverdue,       // `group`'s collective does not end.
  };
  struct Progress {
    int work = 0;
    Trouble trouble = Trouble::kNone;
    absl::Status error;
    GpuSet group;
  };
  Progress Step(Lane& lane, int64_t now_ns);
  // When the lane's streams are idle, gives its piece back to its task. The host then does the
  // piece.
  void Redo(Lane& lane, int64_t now_ns);
  // The job has failed: the results of the lanes' pieces are no longer wanted.
  void Abandon();

  // Grows the staging of all free lanes on the GPU, unless a wait for the GPU might not end.
  void GrowStaging(const gpu::GpuUuid& uuid);
  // Returns whether a wait for the GPU ends: no collective that might hang runs on its streams.
  bool MayWaitFor(const gpu::GpuUuid& uuid) const;
  bool AnyBusy() const;
  // Adds the GPUs that lanes work on.
  void AddGpus(std::set<gpu::GpuUuid>& uuids) const;
  // Call it before sleeping. Has the GPUs wake this thread. Returns when Step must be called at the
  // latest.
  std::optional<int64_t> PrepareToSleep(int64_t now_ns);
  // Returns the lane's tensor, round and ranks, for messages.
  std::string Describe(const Lane& lane) const;

 private:
  // Returns null if no task may start.
  std::shared_ptr<GpuTask> NextTask();
  bool MayStart(const GpuTask& task, const GpuRange& range) const;
  // Asks for all groups of the lane at once. `failed` is a group that has failed, if one has.
  GpuCollectives::Readiness AskGroups(const Lane& lane, int64_t now_ns, GpuSet& failed);
  // Takes the lane's next step when its communicators are ready. Returns whether it did.
  absl::StatusOr<bool> GoOn(Lane& lane, int64_t now_ns);
  absl::Status OnCopied(Lane& lane, int64_t now_ns);
  // The host has every rank's bytes.
  absl::Status OnInputsOnHost(Lane& lane, int64_t now_ns);
  void OnCollectiveCopied(Lane& lane);
  void OnPieceDone(Lane& lane);

  const GpuStageOptions& options_;
  const HostTensors& host_;
  GpuNode& node_;
  GpuCollectives& collectives_;
  const GpuPins& pins_;
  GpuTasks& tasks_;
  GpuStageCounters& counters_;
  LaneStreams streams_;
  GpuHomePieces home_pieces_;
  GpuPieces pieces_;
  GpuPaths paths_;
  std::vector<Lane> lanes_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_LANES_H_
