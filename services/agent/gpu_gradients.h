// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_GRADIENTS_H_
#define TALWEG_SERVICES_AGENT_GPU_GRADIENTS_H_

#include <absl/status/statusor.h>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "libs/base/ids.h"
#include "libs/gpu/device.h"
#include "libs/pipeline/effects.h"
#include "services/agent/gpu_buffers.h"
#include "services/agent/gpu_losses.h"
#include "services/agent/gpu_node.h"
#include "services/agent/gpu_surroundings.h"

namespace talweg::agent {

// The tensors that ranks have placed on GPUs, and what they push of these. A push counts when its
// event is done, for which it is asked here. Owned by the data thread.
//
//   Place --> placed, not open --Push--> open --`pushed` done--> open, told, ready --Close--> not
//   open
//
//   OnGpuLost: neither placed nor ready; Place and Push follow once more, and it is not told again
class GpuGradients {
 public:
  // One rank's part in one tensor.
  struct Part {
    gpu::GpuUuid gpu;
    gpu::EventId pushed;
    gpu::EventId taken;
    bool placed = false;  // It has these events; false after the GPU is lost.
    bool open = false;    // A round of it is open.
    bool told = false;    // The core knows of that round's push.
    bool ready = false;   // Its bytes may be read, and written.
    Round round;
    uint32_t buffer = 0;
    uint64_t offset = 0;
    gpu::DeviceSpan span;
  };

  // All outlive it.
  GpuGradients(const GpuStageOptions& options, GpuNode& node, const HostTensors& host,
               const GpuLosses& losses, const GpuBuffers& buffers)
      : options_(options), node_(node), host_(host), losses_(losses), buffers_(buffers) {}

  // ----- What ranks say. -----

  // Makes the events of the rank's part. FAILED_PRECONDITION: a round of it is open on another GPU.
  // Otherwise an error is the GPU's.
  absl::Status Place(LocalRank rank, pipeline::TensorIndex tensor, const gpu::GpuUuid& uuid);
  struct Placed {
    gpu::EventHandle pushed;
    gpu::EventHandle taken;
  };
  absl::StatusOr<Placed> ExportEvents(LocalRank rank, pipeline::TensorIndex tensor);
  struct Source {
    uint32_t buffer = 0;
    uint64_t offset = 0;
    bool again = false;  // The open round once more, after lost events.
  };
  // INVALID_ARGUMENT: the rank's push makes no sense.
  absl::Status Push(LocalRank rank, pipeline::TensorIndex tensor, Round round, int32_t priority,
                    const Source& source);
  // FAILED_PRECONDITION: a round that was pushed from the buffer is open.
  absl::Status MayUnexport(LocalRank rank, uint32_t buffer) const;
  // What it had not finished is no push.
  void OnRankLeft(LocalRank rank);
  // It is gone.
  void Forget(LocalRank rank);

  // ----- The duty cycle. -----

  // The first rank from this one on whose gradients may be waited for.
  std::optional<LocalRank> NextToAsk(LocalRank from) const;
  struct Ready {
    LocalRank rank;
    pipeline::TensorIndex tensor;
    Round round;
    int32_t priority = 0;
  };
  struct Asked {
    int done = 0;
    std::vector<Ready> pushes;  // Those of which the core does not know.
    std::string what;           // After an error: what was asked for.
  };
  // Asks for the rank's gradients, and adds those that are there. An error is the GPU's.
  absl::Status Ask(LocalRank rank, int64_t now_ns, Asked& asked);
  // After how long to ask again, at the latest; none: nothing is waited for.
  std::optional<int64_t> AskAfterNs(int64_t now_ns) const;

  // The rank's round is over.
  void Close(LocalRank rank, pipeline::TensorIndex tensor);
  void OnGpuLost(const gpu::GpuUuid& uuid);
  // After GpuBuffers::MapAgain.
  void OnMappedAgain(const gpu::GpuUuid& uuid);
  // No round is open any more.
  void Abandon();

  // ----- To look at. -----

  // Null: it has no part, or no round of it is open, or another.
  const Part* FindOpen(LocalRank rank, pipeline::TensorIndex tensor, Round round) const;
  bool HasAny(pipeline::TensorIndex tensor, Round round) const;
  // The ranks that have this round open.
  std::vector<LocalRank> OpenRanks(pipeline::TensorIndex tensor, Round round) const;
  // Null: the rank is not here.
  const Part* FindPresent(LocalRank rank, pipeline::TensorIndex tensor) const;
  bool AnyOpen(LocalRank rank) const;
  std::set<pipeline::TensorIndex> TensorsOn(const gpu::GpuUuid& uuid) const;
  void AddGpus(std::set<gpu::GpuUuid>& uuids) const;

 private:
  struct Waiting {
    pipeline::TensorIndex tensor;
    Round round;
    int32_t priority = 0;
  };
  struct Rank {
    std::map<pipeline::TensorIndex, Part> parts;
    std::deque<Waiting> waiting;  // Wait for PUSHED, in the order of pushes.
    size_t asked = 0;             // Which of these was asked last.
    // When it began to wait, or when the last one was done. None: since the last Ask.
    std::optional<int64_t> brought_ns;
  };
  absl::Status CheckPush(LocalRank rank, pipeline::TensorIndex tensor, Round round,
                         const Source& source) const;
  absl::Status MakeEvents(Part& part);
  void DestroyEvents(const Part& part);
  // Whether the rank's `i`-th gradient no longer waits.
  absl::StatusOr<bool> AskOne(LocalRank local_rank, Rank& rank, size_t i, int64_t now_ns,
                              Asked& asked);

  const GpuStageOptions& options_;
  GpuNode& node_;
  const HostTensors& host_;
  const GpuLosses& losses_;
  const GpuBuffers& buffers_;
  std::map<LocalRank, Rank> ranks_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_GRADIENTS_H_
