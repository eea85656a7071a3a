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

// The lanes, each with a piece of a task or free, and how far each has come:
//
//   kFree --Start--> kCopying --done--> kFree, or once more kCopying (what the host made goes up)
//   kFree --Start--> kAwaitCommunicator --ready--> kLaunching --launched--> kCollective --done-->
//   kCopying
//   any --Redo--> kDraining --done--> kFree
//
// A lane that meets with an error stays where it is: GpuFailures has what follows. Owned by the
// data thread.
class GpuLanes {
 public:
  // All outlive it.
  GpuLanes(const GpuStageOptions& options, const HostTensors& host, GpuNode& node,
           GpuCollectives& collectives, const GpuLosses& losses, const GpuPins& pins,
           GpuTasks& tasks, GpuStageCounters& counters);

  std::vector<Lane>& all() { return lanes_; }

  // Gives the lane, which is free, the next piece that may start. False: there is none. An error is
  // of the piece, which the lane has by then.
  absl::StatusOr<bool> Start(Lane& lane, int64_t now_ns);

  enum class Trouble : uint8_t {
    kNone,
    kPiece,         // What was posted for it, or could not be.
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
  // Gives the lane's piece back to its task, for the host, when its streams have come to rest.
  void Redo(Lane& lane, int64_t now_ns);
  // Nobody wants any more what they are at.
  void Abandon();

  // Grows the staging of all free lanes, unless that might wait for ever.
  void GrowStaging(const gpu::GpuUuid& uuid);
  // No collective that might hang is on its streams, launched or put aside. So a wait for the GPU
  // ends.
  bool MayWaitFor(const gpu::GpuUuid& uuid) const;
  bool AnyBusy() const;
  // Those that lanes work on.
  void AddGpus(std::set<gpu::GpuUuid>& uuids) const;
  // Before sleeping: has the GPUs wake this thread. Returns when Step is wanted anyhow.
  std::optional<int64_t> PrepareToSleep(int64_t now_ns);
  // The lane's tensor, round and ranks, for people.
  std::string Describe(const Lane& lane) const;

 private:
  // Null: none may start.
  std::shared_ptr<GpuTask> NextTask();
  bool MayStart(const GpuTask& task, const GpuRange& range) const;
  // Asks for all groups of the lane together, and names one that has failed.
  GpuCollectives::Readiness AskGroups(const Lane& lane, int64_t now_ns, GpuSet& failed);
  // Goes on where the communicators are ready. True: it has.
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
