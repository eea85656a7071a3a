// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_STAGE_H_
#define TALWEG_SERVICES_AGENT_GPU_STAGE_H_

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "libs/gpu/device.h"
#include "libs/pipeline/effects.h"
#include "services/agent/gpu_buffers.h"
#include "services/agent/gpu_collectives.h"
#include "services/agent/gpu_deliveries.h"
#include "services/agent/gpu_failures.h"
#include "services/agent/gpu_gradients.h"
#include "services/agent/gpu_homes.h"
#include "services/agent/gpu_lanes.h"
#include "services/agent/gpu_losses.h"
#include "services/agent/gpu_node.h"
#include "services/agent/gpu_pins.h"
#include "services/agent/gpu_releases.h"
#include "services/agent/gpu_reopening.h"
#include "services/agent/gpu_surroundings.h"
#include "services/agent/gpu_tasks.h"

namespace talweg::agent {

// Turns gradients on GPUs into contributions in host memory, and brings results back: docs/gpu.md.
//
// It is a state machine over libs/gpu, polled by its one owner thread. Only what declares blocks
// (Export, Place: these make a context, mappings and buffers). It knows no ranks' sockets.
//
//   push -> PUSHED asked until done -> OnGradientReady -> [core] -> Reduce -> pieces on lanes ->
//   OnReduced -> [core: network] -> Deliver -> pieces on lanes -> TAKEN recorded, asked ->
//   OnDelivered
//
// A lane is a stream on every GPU with its staging buffers. Each has one piece of a slice at a
// time. The lanes overlap: one's copy to the host runs beside another's sum and a third's copy
// back. Nothing is written into a rank's tensor before the core has decided its round, unless this
// member is the whole job, because until then a new view may want the contribution once more.
//
// Each part below has its own rules and state; this has the order in which they are polled, and
// what a GPU that is lost means to each.
class GpuStage {
 public:
  // All of these outlive it. `graveyard` takes failed communicators.
  GpuStage(const GpuStageOptions& options, gpu::Platform& platform, const HostTensors& host,
           Graveyard& graveyard, GpuEvents& events);
  // Waits for the GPUs, except for those that a collective will not let go.
  ~GpuStage() = default;
  GpuStage(const GpuStage&) = delete;
  GpuStage& operator=(const GpuStage&) = delete;

  // ----- What ranks hand over. A LocalRank is one process: Forget comes before its successor.
  // -----

  using Exported = GpuBuffers::Exported;
  absl::StatusOr<Exported> Export(LocalRank rank, const gpu::GpuUuid& uuid, uint64_t buffer_id,
                                  const gpu::MemoryHandle& handle);
  // OK: OnUnexported follows. FAILED_PRECONDITION: a round that was pushed from the buffer is open.
  absl::Status Unexport(LocalRank rank, uint32_t request, uint32_t buffer);
  using Placed = GpuGradients::Placed;
  absl::StatusOr<Placed> Place(LocalRank rank, pipeline::TensorIndex tensor, uint32_t buffer);
  using Source = GpuGradients::Source;
  // INVALID_ARGUMENT: the rank's push makes no sense.
  absl::Status Push(LocalRank rank, pipeline::TensorIndex tensor, Round round, int32_t priority,
                    const Source& source);

  // ----- Tensors that a NIC sends from the GPU, and receives into it: gpu_homes.h. -----

  using DirectMemory = GpuHomes::DirectMemory;
  // Makes the memory for a tensor that is being declared, for good. If it cannot be had:
  // FAILED_PRECONDITION, RESOURCE_EXHAUSTED or OUT_OF_RANGE (too small, or a broadcast) for this
  // tensor, UNIMPLEMENTED for any. Whoever registers the memory ends that before the tensors are
  // forgotten.
  absl::StatusOr<DirectMemory> MakeDirect(pipeline::TensorIndex tensor,
                                          const pipeline::TensorSpec& spec, uint32_t rank_count);
  void DropDirect(pipeline::TensorIndex tensor);
  // Such a tensor's slices are this stage's, wherever its ranks pushed from.
  bool IsDirect(pipeline::TensorIndex tensor) const { return homes_.Has(tensor); }
  bool AnyDirect() const { return !homes_.empty(); }
  // A slice's result that came, or leaves, in a frame. Fails only when the GPU does; then
  // OnGpuFailed is called.
  absl::Status StoreResult(const pipeline::SliceBytes& slice, std::span<const std::byte> bytes);
  absl::Status FetchResult(const pipeline::SliceBytes& slice, std::span<std::byte> bytes);

  // The rank pushes nothing more. What it pushed is still summed. Its memory goes when nothing
  // needs it.
  void OnRankLeft(LocalRank rank);
  bool IsGone(LocalRank rank) const { return !buffers_.Knows(rank); }

  // ----- What the core wants. -----

  // Whether a rank has pushed the tensor's open round from a GPU. Then the slices of that round are
  // this stage's.
  bool HasGradients(pipeline::TensorIndex tensor, Round round) const {
    return gradients_.HasAny(tensor, round);
  }
  // The same, or a NIC has its bytes, wherever its ranks pushed it from.
  bool TakesPart(pipeline::TensorIndex tensor, Round round) const {
    return IsDirect(tensor) || HasGradients(tensor, round);
  }
  void Reduce(const pipeline::ReduceSlice& reduce);
  // OnDelivered follows, at once for a round that failed.
  void Deliver(const pipeline::CompleteRound& round);
  // The job is over. The stage begins nothing more, and tells nothing.
  void Abandon();
  // Forgets all tensors. Only when IsIdle().
  void ForgetTensors();

  // ----- The duty cycle. -----

  int Poll(int64_t now_ns);
  // Whether nothing is under way, deliveries and ranks that have left included.
  bool IsIdle() const;
  // Call it before sleeping on WaitDescriptor. It has the GPUs make the descriptor readable when
  // what this agent posted is done. Gradients end by other processes' work, so they wake nobody and
  // are asked for. Returns when Poll is wanted anyhow, which may be at once. None: not before a
  // wake-up, or another call.
  std::optional<int64_t> PrepareToSleep();
  int WaitDescriptor() const { return node_.WaitDescriptor(); }
  // Call it when the descriptor is readable, then Poll.
  void DrainWakeups() { node_.DrainWakeups(); }

  const GpuStageCounters& counters() const { return counters_; }
  size_t context_count() const { return node_.gpu_count(); }
  const GpuNode& node() const { return node_; }

 private:
  // Hardly a byte of a tensor that a NIC has on the GPU goes through the host: that is not pinned.
  void Pin(pipeline::TensorIndex tensor, const gpu::GpuUuid& uuid);

  // The result lies where a NIC wrote it.
  void DeliverFromHome(const std::shared_ptr<GpuDelivery>& delivery, const GpuHome& home,
                       std::vector<GpuInput> targets);

  int AskGradients();
  int StepLanes();
  int StartPieces();
  int AskDeliveries();
  int TendLost();

  void OnPieceFailed(Lane& lane, const absl::Status& status);
  // Looks for lost GPUs, which `status` may tell of. False: it tells of something else.
  bool FoundLost(const absl::Status& status);
  void OnGpuLost(const gpu::GpuUuid& uuid, const absl::Status& why);
  // Returns the status, after it has acted on a failure.
  absl::Status Checked(absl::Status status, pipeline::TensorIndex tensor);

  // Each part knows only parts that stand before it.
  const GpuStageOptions options_;
  const HostTensors& host_;
  GpuEvents& events_;
  GpuStageCounters counters_;
  GpuNode node_;
  GpuCollectives collectives_;
  GpuLosses losses_;
  GpuBuffers buffers_;
  GpuPins pins_;
  GpuGradients gradients_;
  GpuHomes homes_;
  GpuTasks tasks_;
  GpuDeliveries deliveries_;
  GpuLanes lanes_;
  GpuReleases releases_;
  GpuFailures failures_;
  GpuReopening reopening_;
  int64_t now_ns_ = 0;    // When Poll was last called.
  bool touched_ = false;  // Since then.
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_STAGE_H_
