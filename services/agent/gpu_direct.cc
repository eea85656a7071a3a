// SPDX-License-Identifier: Apache-2.0
// Tensors that a NIC sends from the GPU and receives into it (docs/gpu.md, "GPUDirect").
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <utility>

#include "libs/base/bytes.h"
#include "libs/base/fingerprint.h"
#include "libs/status/status.h"
#include "libs/wire/frames.h"
#include "services/agent/gpu_stage.h"

namespace talweg::agent {

// ----- Their memory. -----

absl::StatusOr<gpu::GpuUuid> GpuStage::HomeOf(const pipeline::TensorSpec& spec,
                                              uint32_t rank_count) {
  std::set<gpu::GpuUuid> uuids;
  uint32_t with_memory = 0;
  for (const auto& [local_rank, rank] : ranks_) {
    bool any = false;
    for (const std::optional<Buffer>& buffer : rank.buffers) {
      if (!buffer || rank.left) continue;
      uuids.insert(buffer->gpu);
      any = true;
    }
    with_memory += any;
  }
  const GpuSet gpus(uuids.begin(), uuids.end());
  if (AnyLost(gpus)) return absl::FailedPreconditionError("a GPU is being opened again");
  std::vector<GpuSet> groups = {gpus};
  if (gpus.size() > 1) groups = node_.GroupsOf(gpus);
  if (groups.size() > 1) {
    return absl::FailedPreconditionError(
        "PCIe switches lie between the GPUs that the node's ranks use");
  }
  if (with_memory < rank_count) {
    return absl::FailedPreconditionError(
        absl::StrCat(rank_count - with_memory, " of the node's ranks have exported no memory yet"));
  }
  if (gpus.size() > 1) {
    const Op op = spec.collective.op == Op::kAverage ? Op::kSum : spec.collective.op;
    if (!gpu::Communicator::Combines(spec.collective.dtype, op)) {
      return absl::OutOfRangeError("a tensor that is summed on the host");
    }
    if (!MayUse(groups)) {
      return absl::FailedPreconditionError(
          "the node's ranks use several GPUs, and there is no communicator among them");
    }
  }
  // The bits of a sum among GPUs depend on where it ends. For each tensor that is the same in every
  // run. Many tensors use the links, and the memory, of all GPUs.
  return gpus[Fingerprint64(spec.name) % gpus.size()];
}

absl::StatusOr<GpuStage::DirectMemory> GpuStage::MakeDirect(pipeline::TensorIndex tensor,
                                                            const pipeline::TensorSpec& spec,
                                                            uint32_t rank_count) {
  if (failed_) return absl::FailedPreconditionError("the agent has lost a GPU");
  if (spec.collective.copies() || spec.bytes() < options_.direct_bytes_min) {
    return absl::OutOfRangeError("a tensor that is not worth it");
  }
  TALWEG_ASSIGN_OR_RETURN(const gpu::GpuUuid uuid, HomeOf(spec, rank_count));
  gpu::Device& device = DeviceOf(uuid);
  const uint64_t each = RoundUp(spec.bytes(), gpu::kNicPageBytes);
  const uint64_t wanted = 3 * each + gpu::kNicPageBytes;  // The pages are a part of this.
  uint64_t taken = 0;
  for (const auto& [other, direct] : direct_) {
    if (direct.gpu == uuid) taken += direct.allocated.bytes;
  }
  const uint64_t most = device.info().memory_bytes / options_.direct_share;
  if (wanted > most || taken > most - wanted) {
    return absl::ResourceExhaustedError(
        absl::StrCat(FormatBytes(taken), " of ", gpu::Describe(device.info()),
                     " are a NIC's, and no more than ", FormatBytes(most), " may be"));
  }
  Direct direct{.gpu = uuid, .rank_count = rank_count};
  TALWEG_ASSIGN_OR_RETURN(direct.allocated, device.Allocate(wanted));
  const uint64_t first = RoundUp(direct.allocated.address, gpu::kNicPageBytes);
  direct.send = {first, each};
  direct.results = {gpu::DeviceSpan{first + each, each}, gpu::DeviceSpan{first + 2 * each, each}};
  const auto open = [&]() -> absl::StatusOr<DirectMemory> {
    DirectMemory memory;
    TALWEG_ASSIGN_OR_RETURN(memory.send, device.OpenToNic(direct.send));
    TALWEG_ASSIGN_OR_RETURN(memory.results[0], device.OpenToNic(direct.results[0]));
    TALWEG_ASSIGN_OR_RETURN(memory.results[1], device.OpenToNic(direct.results[1]));
    return memory;
  };
  absl::StatusOr<DirectMemory> memory = open();
  if (memory.ok()) {
    direct_.emplace(tensor, direct);
  } else {
    device.Free(direct.allocated).IgnoreError();
  }
  return memory;
}

void GpuStage::DropDirect(pipeline::TensorIndex tensor) {
  const auto at = direct_.find(tensor);
  if (at == direct_.end()) return;
  if (!IsLost(at->second.gpu)) DeviceOf(at->second.gpu).Free(at->second.allocated).IgnoreError();
  direct_.erase(at);
  close_gpus_ = true;
}

// The CPU writes what leaves in a frame. Results are whole on the GPU: after a new view slices are
// cut elsewhere, and what came in a frame may leave as part of a longer slice.
const GpuStage::Direct* GpuStage::DirectOf(const pipeline::SliceBytes& slice) const {
  const auto at = direct_.find(slice.tensor);
  if (at == direct_.end()) return nullptr;
  const bool is_on_gpu =
      slice.memory == pipeline::Memory::kResult || slice.length_bytes > wire::kInlineBytesMax;
  return is_on_gpu ? &at->second : nullptr;
}

gpu::DeviceSpan GpuStage::Direct::Bytes(const pipeline::SliceBytes& slice) const {
  const gpu::DeviceSpan& all =
      slice.memory == pipeline::Memory::kResult ? results[slice.round.value() & 1] : send;
  return all.Part(slice.offset_bytes, slice.length_bytes);
}

gpu::DeviceSpan GpuStage::DirectBytes(const Lane& lane) {
  pipeline::SliceBytes slice = lane.task->slice;
  slice.offset_bytes = lane.range.offset;
  slice.length_bytes = static_cast<uint32_t>(lane.range.length);
  return lane.task->direct->Bytes(slice);
}

absl::Status GpuStage::StoreResult(const pipeline::SliceBytes& slice,
                                   std::span<const std::byte> bytes) {
  const Direct& direct = direct_.at(slice.tensor);
  return Checked(DeviceOf(direct.gpu).WriteNow(direct.Bytes(slice), bytes), slice.tensor);
}

absl::Status GpuStage::FetchResult(const pipeline::SliceBytes& slice, std::span<std::byte> bytes) {
  const Direct& direct = direct_.at(slice.tensor);
  gpu::Device& device = DeviceOf(direct.gpu);
  absl::Status status = device.FlushNicWrites();
  if (status.ok()) status = device.ReadNow(bytes, direct.Bytes(slice));
  return Checked(std::move(status), slice.tensor);
}

absl::Status GpuStage::Checked(absl::Status status, pipeline::TensorIndex tensor) {
  if (!status.ok() && !FoundLost(status)) {
    Fail(absl::StrCat("tensor '", host_.Spec(tensor).name, "': ", status::StatusText(status)));
  }
  return status;
}

// ----- Their pieces. -----

// Copies a single rank's bytes to where the NIC reads them, or a result from where the NIC wrote
// it.
absl::Status GpuStage::PostStay(Lane& lane) {
  const gpu::GpuUuid& home = lane.task->direct->gpu;
  const gpu::StreamId stream = PartOf(lane, home).stream;
  const gpu::DeviceSpan here = DirectBytes(lane);
  for (const Input& input : lane.task->inputs) {
    const gpu::DeviceSpan rank = input.span.Part(lane.range.offset, lane.range.length);
    TALWEG_RETURN_IF_ERROR(DeviceOf(home).CopyOnDevice(stream, lane.task->delivers ? rank : here,
                                                       lane.task->delivers ? here : rank));
  }
  return absl::OkStatus();
}

// A sum that the host made lies after its inputs.
std::span<std::byte> GpuStage::HostSum(const Lane& lane) {
  const gpu::GpuUuid& home = lane.task->direct->gpu;
  const auto at_home =
      std::count_if(lane.task->inputs.begin(), lane.task->inputs.end(),
                    [&](const Input& input) { return input.on_device && input.gpu == home; });
  return PartOf(lane, home)
      .host.subspan(static_cast<size_t>(at_home) * lane.range.length, lane.range.length);
}

absl::Status GpuStage::PostSumUp(Lane& lane) {
  const gpu::GpuUuid& home = lane.task->direct->gpu;
  lane.goes_up = true;
  TALWEG_RETURN_IF_ERROR(
      DeviceOf(home).CopyToDevice(PartOf(lane, home).stream, DirectBytes(lane), HostSum(lane)));
  return Record(lane);
}

absl::Status GpuStage::PostMirror(Lane& lane) {
  const gpu::GpuUuid& home = lane.task->direct->gpu;
  LanePart& part = PartOf(lane, home);
  return DeviceOf(home).CopyToHost(part.stream, part.host.first(lane.range.length),
                                   DirectBytes(lane));
}

// For ranks on other GPUs, to which the result cannot be broadcast.
absl::Status GpuStage::PostMirrorUp(Lane& lane) {
  lane.goes_up = true;
  const std::span<std::byte> source =
      PartOf(lane, lane.task->direct->gpu).host.first(lane.range.length);
  for (const gpu::GpuUuid& uuid : lane.gpus) {
    TALWEG_RETURN_IF_ERROR(CopyUpToRanks(lane, uuid, source));
  }
  return Record(lane);
}

// Collectives never touch what a NIC has. One that hangs may write when it is aborted, over what
// was sent meanwhile. So there is a copy at home after each sum, and before each broadcast.
absl::Status GpuStage::PostFromHome(Lane& lane) {
  const gpu::GpuUuid& home = lane.task->direct->gpu;
  const LanePart& part = PartOf(lane, home);
  return DeviceOf(home).CopyOnDevice(part.stream, part.in.Part(0, lane.range.length),
                                     DirectBytes(lane));
}

absl::Status GpuStage::PostCollectiveOfHome(Lane& lane, const GpuSet& group,
                                            const std::vector<gpu::CollectivePart>& parts) {
  const Task& task = *lane.task;
  const auto at = std::find(group.begin(), group.end(), task.direct->gpu);
  const auto home = static_cast<size_t>(at - group.begin());
  gpu::Communicator& communicator = collectives_.At(group);
  if (task.delivers) return communicator.Broadcast(task.dtype, lane.elements(), home, parts);
  const Op op = task.op == Op::kAverage ? Op::kSum : task.op;
  return communicator.Reduce(task.dtype, op, lane.elements(), home, parts);
}

absl::Status GpuStage::PostToHome(Lane& lane) {
  const gpu::GpuUuid& home = lane.task->direct->gpu;
  const LanePart& part = PartOf(lane, home);
  return DeviceOf(home).CopyOnDevice(part.stream, DirectBytes(lane),
                                     part.out.Part(0, lane.range.length));
}

// ----- Their results. -----

void GpuStage::DeliverDirect(const std::shared_ptr<Delivery>& delivery, const Direct& direct,
                             std::vector<Input> targets) {
  const pipeline::CompleteRound& round = delivery->round;
  // Flushes before anything is posted that reads the results.
  if (!Checked(DeviceOf(direct.gpu).FlushNicWrites(), round.tensor).ok()) return;
  const std::vector<Range> all = {{0, host_.Spec(round.tensor).bytes()}};
  const bool on_gpus = delivery->ranks.size() == direct.rank_count;
  if (on_gpus) return QueueDelivery(delivery, targets, all, &direct, false);
  // A rank pushed from the host, and wants the result there.
  delivery->mirrored_for = std::move(targets);
  delivery->mirrors = true;
  QueueDelivery(delivery, {}, all, &direct, true);
}

void GpuStage::OnMirrored(const std::shared_ptr<Delivery>& delivery) {
  delivery->mirrors = false;
  const std::vector<Input> targets = std::exchange(delivery->mirrored_for, {});
  if (targets.empty()) {
    delivery->recorded = true;
    return;
  }
  QueueDelivery(delivery, targets, {{0, host_.Spec(delivery->round.tensor).bytes()}}, nullptr,
                false);
}

}  // namespace talweg::agent
