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

// The tensors that ranks have placed on GPUs, and the pushes of them. A push counts when its
// `pushed` event is done; Ask queries these events. Owned by the data thread.
//
//   Place --> placed, not open --Push--> open --`pushed` done--> open, told, ready --Close--> not
//   open
//
//   OnGpuLost: neither placed nor ready; the rank places and pushes again, the core is not told
class GpuGradients {
 public:
  // One rank's part in one tensor.
  struct Part {
    gpu::GpuUuid gpu;
    gpu::EventId pushed;
    gpu::EventId taken;
    bool placed = false;  // The events exist; false after the GPU is lost.
    bool open = false;    // A round of the tensor is open.
    bool told = false;    // The core knows of that round's push.
    bool ready = false;   // Lanes may read and write its bytes.
    Round round;
    uint32_t buffer = 0;
    uint64_t offset = 0;
    gpu::DeviceSpan span;
  };

  // All outlive this object.
  GpuGradients(const GpuStageOptions& options, GpuNode& node, const HostTensors& host,
               const GpuLosses& losses, const GpuBuffers& buffers)
      : options_(options), node_(node), host_(host), losses_(losses), buffers_(buffers) {}

  // ----- What ranks say. -----

  // Makes the events of the rank's part. FAILED_PRECONDITION: a round of the tensor is open on
  // another GPU. Any other error is the GPU's.
  absl::Status Place(LocalRank rank, pipeline::TensorIndex tensor, const gpu::GpuUuid& uuid);
  struct Placed {
    gpu::EventHandle pushed;
    gpu::EventHandle taken;
  };
  absl::StatusOr<Placed> ExportEvents(LocalRank rank, pipeline::TensorIndex tensor);
  struct Source {
    uint32_t buffer = 0;
    uint64_t offset = 0;
    bool again = false;  // The rank pushes the open round again, because its events were lost.
  };
  // INVALID_ARGUMENT: the rank's push is not valid.
  absl::Status Push(LocalRank rank, pipeline::TensorIndex tensor, Round round, int32_t priority,
                    const Source& source);
  // FAILED_PRECONDITION: a round that was pushed from the buffer is open.
  absl::Status MayUnexport(LocalRank rank, uint32_t buffer) const;
  // Drops the rank's pushes whose events are not done.
  void OnRankLeft(LocalRank rank);
  // The rank is gone: destroys its events.
  void Forget(LocalRank rank);

  // ----- The duty cycle. -----

  // Returns the first rank, beginning with `from`, that has to be asked.
  std::optional<LocalRank> NextToAsk(LocalRank from) const;
  struct Ready {
    LocalRank rank;
    pipeline::TensorIndex tensor;
    Round round;
    int32_t priority = 0;
  };
  struct Asked {
    int done = 0;
    std::vector<Ready> pushes;  // The pushes that the core has not been told of.
    std::string what;           // After an error: the rank and the tensor.
  };
  // Queries the rank's `pushed` events, and adds the pushes that are done to `asked`. An error is
  // the GPU's.
  absl::Status Ask(LocalRank rank, int64_t now_ns, Asked& asked);
  // Returns after how long to ask again at the latest; nullopt: no rank waits.
  std::optional<int64_t> AskAfterNs(int64_t now_ns) const;

  // The tensor's round is over for the rank.
  void Close(LocalRank rank, pipeline::TensorIndex tensor);
  void OnGpuLost(const gpu::GpuUuid& uuid);
  // After GpuBuffers::MapAgain.
  void OnMappedAgain(const gpu::GpuUuid& uuid);
  // Closes all rounds.
  void Abandon();

  // ----- To look at. -----

  // Returns null unless the rank has this round of the tensor open.
  const Part* FindOpen(LocalRank rank, pipeline::TensorIndex tensor, Round round) const;
  bool HasAny(pipeline::TensorIndex tensor, Round round) const;
  // Returns the ranks that have this round open.
  std::vector<LocalRank> OpenRanks(pipeline::TensorIndex tensor, Round round) const;
  // Returns null if the rank is not here, or has not placed the tensor.
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
    // Pushes whose `pushed` event is not done, in the order of pushes.
    std::deque<Waiting> waiting;
    size_t asked = 0;  // The index in `waiting` that was asked last.
    // When the rank's first push began to wait, or when an event was last done. nullopt: the wait
    // began after the last Ask.
    std::optional<int64_t> brought_ns;
  };
  absl::Status CheckPush(LocalRank rank, pipeline::TensorIndex tensor, Round round,
                         const Source& source) const;
  absl::Status MakeEvents(Part& part);
  void DestroyEvents(const Part& part);
  // Returns whether the rank's `i`-th waiting push is done.
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
