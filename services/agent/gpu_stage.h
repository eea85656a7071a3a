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
// A state machine over libs/gpu, which its one owner thread polls. Only Export and Place block:
// they make a context, mappings and buffers. The stage knows nothing of the ranks' sockets.
//
//   push -> `pushed` asked until done -> OnGradientReady -> [core] -> Reduce -> pieces on lanes ->
//   OnReduced -> [core: network] -> Deliver -> pieces on lanes -> `taken` recorded, asked ->
//   OnDelivered
//
// A lane is a stream on every GPU with its staging buffers. Each lane has one piece of a slice at a
// time. The lanes overlap: one's copy to the host runs beside another's sum and a third's copy
// back. Until the core has decided a round, a new view may need the contribution again. So the
// stage writes no rank's tensor before that, unless this member is the whole job.
//
// Each part below has its own rules and state. This class decides in which order they are polled,
// and what the loss of a GPU means to each.
class GpuStage {
 public:
  // All of these outlive the stage. `graveyard` takes failed communicators.
  GpuStage(const GpuStageOptions& options, gpu::Platform& platform, const HostTensors& host,
           Graveyard& graveyard, GpuEvents& events);
  // Waits for the GPUs, except for GPUs on which a collective hangs.
  ~GpuStage() = default;
  GpuStage(const GpuStage&) = delete;
  GpuStage& operator=(const GpuStage&) = delete;

  // ----- What ranks hand over. -----
  //
  // A LocalRank is one process. Its successor may export memory once IsGone().

  using Exported = GpuBuffers::Exported;
  absl::StatusOr<Exported> Export(LocalRank rank, const gpu::GpuUuid& uuid, uint64_t buffer_id,
                                  const gpu::MemoryHandle& handle);
  // OK: OnUnexported follows. FAILED_PRECONDITION: a round that was pushed from the buffer is open.
  absl::Status Unexport(LocalRank rank, uint32_t request, uint32_t buffer);
  using Placed = GpuGradients::Placed;
  absl::StatusOr<Placed> Place(LocalRank rank, pipeline::TensorIndex tensor, uint32_t buffer);
  using Source = GpuGradients::Source;
  // INVALID_ARGUMENT: the rank's push is not valid.
  absl::Status Push(LocalRank rank, pipeline::TensorIndex tensor, Round round, int32_t priority,
                    const Source& source);

  // ----- Tensors that a NIC sends from the GPU, and receives into it: gpu_homes.h. -----

  using DirectMemory = GpuHomes::DirectMemory;
  // Makes the memory for a tensor that is being declared. It stays until ForgetTensors or
  // DropDirect. FAILED_PRECONDITION, RESOURCE_EXHAUSTED and OUT_OF_RANGE (too small, only copied,
  // or summed on the host) say that this tensor gets none, UNIMPLEMENTED that no tensor does. A
  // caller that registers the memory with a transport deregisters it before ForgetTensors.
  absl::StatusOr<DirectMemory> MakeDirect(pipeline::TensorIndex tensor,
                                          const pipeline::TensorSpec& spec, uint32_t rank_count);
  void DropDirect(pipeline::TensorIndex tensor);
  // The stage handles all slices of such a tensor, wherever its ranks pushed from.
  bool IsDirect(pipeline::TensorIndex tensor) const { return homes_.Has(tensor); }
  bool AnyDirect() const { return !homes_.empty(); }
  // StoreResult writes a slice's result that came in a frame, FetchResult reads one that leaves in
  // a frame. Fails only if the GPU does; the stage then handles that failure.
  absl::Status StoreResult(const pipeline::SliceBytes& slice, std::span<const std::byte> bytes);
  absl::Status FetchResult(const pipeline::SliceBytes& slice, std::span<std::byte> bytes);

  // The rank pushes nothing more. What it pushed is still summed. Its memory is unmapped when
  // nothing needs it.
  void OnRankLeft(LocalRank rank);
  bool IsGone(LocalRank rank) const { return !buffers_.Knows(rank); }

  // ----- What the core wants. -----

  // Returns whether a rank has pushed the tensor's open round from a GPU. The stage then handles
  // the slices of that round.
  bool HasGradients(pipeline::TensorIndex tensor, Round round) const {
    return gradients_.HasAny(tensor, round);
  }
  // Returns whether the stage handles the slices of this round.
  bool TakesPart(pipeline::TensorIndex tensor, Round round) const {
    return IsDirect(tensor) || HasGradients(tensor, round);
  }
  void Reduce(const pipeline::ReduceSlice& reduce);
  // OnDelivered follows, at once for a round that failed.
  void Deliver(const pipeline::CompleteRound& round);
  // The job is over. The stage begins nothing more, and sends no more events about rounds.
  void Abandon();
  // Forgets all tensors. Only when IsIdle().
  void ForgetTensors();

  // ----- The duty cycle. -----

  int Poll(int64_t now_ns);
  // Returns whether nothing is under way: no task, no delivery, no memory of a rank.
  bool IsIdle() const;
  // Call it before sleeping on WaitDescriptor. The GPUs then make the descriptor readable when this
  // agent's work is done. Gradients are other processes' work and do not wake this thread, so Poll
  // asks for them. Returns when Poll must be called at the latest, which may be at once; nullopt:
  // not before a wake-up or another call.
  std::optional<int64_t> PrepareToSleep();
  int WaitDescriptor() const { return node_.WaitDescriptor(); }
  // Call it when the descriptor is readable, then Poll.
  void DrainWakeups() { node_.DrainWakeups(); }

  const GpuStageCounters& counters() const { return counters_; }
  size_t context_count() const { return node_.gpu_count(); }
  const GpuNode& node() const { return node_; }

 private:
  // Pins the tensor's host memory, unless it has a home: then hardly a byte goes through the host.
  void Pin(pipeline::TensorIndex tensor, const gpu::GpuUuid& uuid);

  // Delivers a result that lies where a NIC wrote it.
  void DeliverFromHome(const std::shared_ptr<GpuDelivery>& delivery, const GpuHome& home,
                       std::vector<GpuInput> targets);

  int AskGradients();
  int StepLanes();
  int StartPieces();
  int AskDeliveries();
  int TendLost();

  void OnPieceFailed(Lane& lane, const absl::Status& status);
  // Looks for lost GPUs if `status` may report one. Returns false if it reports something else.
  bool FoundLost(const absl::Status& status);
  void OnGpuLost(const gpu::GpuUuid& uuid, const absl::Status& why);
  // Handles a failure, and returns `status`.
  absl::Status Checked(absl::Status status, pipeline::TensorIndex tensor);

  // Each part knows only parts that are declared before it.
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
  bool touched_ = false;  // Whether anything was called since then that Poll has to look at.
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_STAGE_H_
