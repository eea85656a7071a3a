// SPDX-License-Identifier: Apache-2.0
// What ranks hand over: memory, tensors, gradients.
#include <absl/strings/str_cat.h>

#include <algorithm>

#include "libs/status/status.h"
#include "services/agent/gpu_stage.h"

namespace talweg::agent {
namespace {

absl::Status BeingReopened(const gpu::GpuUuid& uuid) {
  return absl::UnavailableError(
      absl::StrCat(gpu::FormatUuid(uuid), " was lost and is being opened again: ask once more"));
}

// The rank can go through host memory, whatever the GPU's driver says. The status tells it so.
absl::Status NotUsable(const absl::Status& status) {
  const bool is_gpus =
      absl::IsInternal(status) || absl::IsAborted(status) || absl::IsFailedPrecondition(status);
  if (!is_gpus) return status;
  return absl::UnavailableError(status.message());
}

}  // namespace

GpuStage::Rank* GpuStage::Find(LocalRank rank) {
  const auto at = ranks_.find(rank);
  return at == ranks_.end() || at->second.left ? nullptr : &at->second;
}

absl::StatusOr<GpuStage::Exported> GpuStage::Export(LocalRank local_rank, const gpu::GpuUuid& uuid,
                                                    uint64_t buffer_id,
                                                    const gpu::MemoryHandle& handle) {
  if (failed_) return absl::FailedPreconditionError("the agent has lost a GPU");
  const auto known = ranks_.find(local_rank);
  if (known != ranks_.end() && known->second.left) {
    return absl::UnavailableError(
        "memory of the process that was this local rank before is still being released");
  }
  if (IsLost(uuid)) return BeingReopened(uuid);
  const absl::StatusOr<NodeGpu*> opened = node_.Open(uuid);
  if (!opened.ok()) return NotUsable(opened.status());
  NodeGpu* const gpu = *opened;
  const bool is_new = known == ranks_.end();
  const Incarnation life = is_new ? Incarnation{next_life_++} : known->second.life;
  const auto span = gpu->imports->Map({life, buffer_id}, handle);
  if (!span.ok()) {
    if (FoundLost(span.status())) return BeingReopened(uuid);
    CloseUnusedGpus();
    return NotUsable(span.status());
  }
  Rank& rank = ranks_[local_rank];
  rank.life = life;
  rank.buffers.push_back(
      Buffer{.gpu = uuid, .buffer_id = buffer_id, .handle = handle, .span = *span});
  return Exported{static_cast<uint32_t>(rank.buffers.size() - 1), span->bytes};
}

absl::Status GpuStage::Unexport(LocalRank local_rank, uint32_t request, uint32_t number) {
  Rank* const rank = Find(local_rank);
  if (rank == nullptr || !rank->Usable(number)) {
    return absl::InvalidArgumentError(absl::StrCat("there is no buffer ", number));
  }
  for (const auto& [tensor, part] : rank->parts) {
    if (!part.open || part.buffer != number) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("tensor '", host_.Spec(tensor).name, "' was pushed from buffer ", number,
                     ", and its round ", part.round.value(), " is open: wait for it first"));
  }
  rank->buffers[number]->leaving = true;
  touched_ = true;
  rank->buffers[number]->leave_request = request;
  return absl::OkStatus();
}

absl::StatusOr<GpuStage::Placed> GpuStage::Place(LocalRank local_rank, pipeline::TensorIndex tensor,
                                                 uint32_t number) {
  Rank* const rank = Find(local_rank);
  if (rank == nullptr || !rank->Usable(number)) {
    return absl::InvalidArgumentError(absl::StrCat("there is no buffer ", number));
  }
  const gpu::GpuUuid uuid = rank->buffers[number]->gpu;
  if (IsLost(uuid)) return BeingReopened(uuid);
  NodeGpu& gpu = node_.At(uuid);
  ++gpu.memory_epoch;
  GrowStaging(uuid);
  const auto known = rank->parts.find(tensor);
  if (known != rank->parts.end() && known->second.gpu != uuid) {
    if (known->second.open) {
      return absl::FailedPreconditionError(
          absl::StrCat("tensor '", host_.Spec(tensor).name, "' has an open round on another GPU"));
    }
    DestroyEvents(known->second);
    rank->parts.erase(known);
  }
  Placed placed;
  Part& part = rank->parts.try_emplace(tensor, Part{.gpu = uuid}).first->second;
  if (const absl::Status made = MakeEvents(part); !made.ok()) {
    if (!part.open) rank->parts.erase(tensor);
    return FoundLost(made) ? BeingReopened(uuid) : made;
  }
  TALWEG_ASSIGN_OR_RETURN(placed.pushed, gpu.device->ExportEvent(part.pushed));
  TALWEG_ASSIGN_OR_RETURN(placed.taken, gpu.device->ExportEvent(part.taken));
  Pin(tensor, uuid);
  return placed;
}

absl::Status GpuStage::MakeEvents(Part& part) {
  if (part.placed) return absl::OkStatus();
  gpu::Device& device = DeviceOf(part.gpu);
  TALWEG_ASSIGN_OR_RETURN(part.pushed, device.NewEvent(gpu::EventScope::kShared));
  const auto taken = device.NewEvent(gpu::EventScope::kShared);
  if (!taken.ok()) {
    device.DestroyEvent(part.pushed);
    return taken.status();
  }
  part.taken = *taken;
  part.placed = true;
  return absl::OkStatus();
}

void GpuStage::DestroyEvents(const Part& part) {
  if (!part.placed) return;
  DeviceOf(part.gpu).DestroyEvent(part.pushed);
  DeviceOf(part.gpu).DestroyEvent(part.taken);
}

void GpuStage::Pin(pipeline::TensorIndex tensor, const gpu::GpuUuid& uuid) {
  // Hardly a byte of a tensor that a NIC has on the GPU goes through the host.
  if (pinned_.contains(tensor) || IsDirect(tensor)) return;
  Pinned& pinned = pinned_[tensor];
  pinned.gpu = uuid;
  const auto pin = [&](std::span<std::byte> bytes, const char* what) {
    if (bytes.empty()) return false;
    const absl::Status status = DeviceOf(uuid).RegisterHost(bytes);
    if (status.ok()) {
      pinned.spans.push_back(bytes);
    } else {
      events_.OnGpuNote(absl::StrCat(what, " of tensor '", host_.Spec(tensor).name,
                                     "' go through staging buffers: ", status::StatusText(status)));
    }
    return status.ok();
  };
  pinned.send = pin(host_.PinnableSend(tensor), "sums");
  const auto [even, odd] = host_.PinnableResults(tensor);
  pinned.results = pin(even, "results") && pin(odd, "results");
}

void GpuStage::Unpin(pipeline::TensorIndex tensor) {
  const auto at = pinned_.find(tensor);
  if (at == pinned_.end()) return;
  for (const std::span<std::byte> bytes : at->second.spans) {
    DeviceOf(at->second.gpu).UnregisterHost(bytes).IgnoreError();
  }
  pinned_.erase(at);
}

bool GpuStage::IsPinned(const pipeline::SliceBytes& slice) const {
  const auto at = pinned_.find(slice.tensor);
  if (at == pinned_.end()) return false;
  return slice.memory == pipeline::Memory::kResult ? at->second.results : at->second.send;
}

absl::Status GpuStage::CheckPush(const Rank& rank, pipeline::TensorIndex tensor, Round round,
                                 const Source& source) const {
  const pipeline::TensorSpec& spec = host_.Spec(tensor);
  const auto part = rank.parts.find(tensor);
  if (part == rank.parts.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a push from a GPU of tensor '", spec.name, "', which was not placed there"));
  }
  if (!rank.Usable(source.buffer)) {
    return absl::InvalidArgumentError(absl::StrCat("a push of tensor '", spec.name,
                                                   "' from buffer ", source.buffer,
                                                   ", which it has not exported"));
  }
  const Buffer& buffer = *rank.buffers[source.buffer];
  if (buffer.gpu != part->second.gpu || source.offset % DTypeSize(spec.collective.dtype) != 0 ||
      source.offset > buffer.span.bytes || spec.bytes() > buffer.span.bytes - source.offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("a push of tensor '", spec.name, "' (", spec.bytes(), " bytes) from offset ",
                     source.offset, " of buffer ", source.buffer, ", which has ", buffer.span.bytes,
                     " bytes, on the tensor's GPU or another"));
  }
  if (part->second.open && !(source.again && part->second.round == round)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a push of tensor '", spec.name, "' while its round is open"));
  }
  return absl::OkStatus();
}

absl::Status GpuStage::Push(LocalRank local_rank, pipeline::TensorIndex tensor, Round round,
                            int32_t priority, const Source& source) {
  Rank* const rank = Find(local_rank);
  if (rank == nullptr) {
    return absl::InvalidArgumentError("a push from a GPU by a rank that has exported nothing");
  }
  TALWEG_RETURN_IF_ERROR(CheckPush(*rank, tensor, round, source));
  Part& part = rank->parts.at(tensor);
  if (source.again) {
    // The round is over, or was pushed after an event of another GPU that is still good.
    const bool is_waiting =
        std::any_of(rank->waiting.begin(), rank->waiting.end(),
                    [&](const Waiting& waiting) { return waiting.tensor == tensor; });
    if (!part.open || part.ready || is_waiting) return absl::OkStatus();
  } else {
    part.told = false;
  }
  part.open = true;
  part.ready = false;
  part.round = round;
  part.buffer = source.buffer;
  part.offset = source.offset;
  part.span = rank->buffers[source.buffer]->span.Part(source.offset, host_.Spec(tensor).bytes());
  // Without its events the tensor is pushed again, after the rank has placed it.
  if (part.placed) {
    if (rank->waiting.empty()) rank->brought_ns.reset();
    rank->waiting.push_back({tensor, round, priority});
  }
  touched_ = true;
  return absl::OkStatus();
}

void GpuStage::OnRankLeft(LocalRank local_rank) {
  Rank* const rank = Find(local_rank);
  if (rank == nullptr) return;
  rank->left = true;
  touched_ = true;
  // What the rank had not finished is no push.
  for (auto& [tensor, part] : rank->parts) {
    part.open = part.open && part.told;
    part.ready = part.open && !IsLost(part.gpu);
  }
  rank->waiting.clear();
}

}  // namespace talweg::agent
