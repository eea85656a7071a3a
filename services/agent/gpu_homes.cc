// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_homes.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <vector>

#include "libs/base/bytes.h"
#include "libs/base/fingerprint.h"
#include "libs/status/status.h"
#include "libs/wire/frames.h"

namespace talweg::agent {

gpu::DeviceSpan GpuHome::Bytes(const pipeline::SliceBytes& slice) const {
  const gpu::DeviceSpan& all =
      slice.memory == pipeline::Memory::kResult ? results[slice.round.value() & 1] : send;
  return all.Part(slice.offset_bytes, slice.length_bytes);
}

absl::StatusOr<gpu::GpuUuid> GpuHomes::ChooseGpu(const pipeline::TensorSpec& spec,
                                                 uint32_t rank_count, int64_t now_ns) {
  const auto [gpus, with_memory] = buffers_.PresentSpread();
  if (losses_.HasAny(gpus)) return absl::FailedPreconditionError("a GPU is being opened again");
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
    if (!collectives_.MayUseAll(groups, now_ns)) {
      return absl::FailedPreconditionError(
          "the node's ranks use several GPUs, and there is no communicator among them");
    }
  }
  // The bits of a sum among GPUs depend on the GPU where it ends. So each tensor has the same home
  // in every run. Homes of many tensors spread over the links and the memory of all GPUs.
  return gpus[Fingerprint64(spec.name) % gpus.size()];
}

absl::StatusOr<GpuHomes::DirectMemory> GpuHomes::Make(pipeline::TensorIndex tensor,
                                                      const pipeline::TensorSpec& spec,
                                                      uint32_t rank_count, int64_t now_ns) {
  if (spec.collective.copies() || spec.bytes() < options_.direct_bytes_min) {
    return absl::OutOfRangeError("a broadcast, or a tensor that is too small");
  }
  TALWEG_ASSIGN_OR_RETURN(const gpu::GpuUuid uuid, ChooseGpu(spec, rank_count, now_ns));
  gpu::Device& device = node_.DeviceOf(uuid);
  const uint64_t each = RoundUp(spec.bytes(), gpu::kNicPageBytes);
  // The last term is for alignment to pages.
  const uint64_t wanted = 3 * each + gpu::kNicPageBytes;
  uint64_t taken = 0;
  for (const auto& [other, home] : homes_) {
    if (home.gpu == uuid) taken += home.allocated.bytes;
  }
  const uint64_t most = device.info().memory_bytes / options_.direct_share;
  if (wanted > most || taken > most - wanted) {
    return absl::ResourceExhaustedError(
        absl::StrCat(FormatBytes(taken), " of ", gpu::Describe(device.info()),
                     " are a NIC's, and no more than ", FormatBytes(most), " may be"));
  }
  GpuHome home{.gpu = uuid, .rank_count = rank_count};
  TALWEG_ASSIGN_OR_RETURN(home.allocated, device.Allocate(wanted));
  const uint64_t first = RoundUp(home.allocated.address, gpu::kNicPageBytes);
  home.send = {first, each};
  home.results = {gpu::DeviceSpan{first + each, each}, gpu::DeviceSpan{first + 2 * each, each}};
  const auto open = [&]() -> absl::StatusOr<DirectMemory> {
    DirectMemory memory;
    TALWEG_ASSIGN_OR_RETURN(memory.send, device.OpenToNic(home.send));
    TALWEG_ASSIGN_OR_RETURN(memory.results[0], device.OpenToNic(home.results[0]));
    TALWEG_ASSIGN_OR_RETURN(memory.results[1], device.OpenToNic(home.results[1]));
    return memory;
  };
  absl::StatusOr<DirectMemory> memory = open();
  if (memory.ok()) {
    homes_.emplace(tensor, home);
  } else {
    device.Free(home.allocated).IgnoreError();
  }
  return memory;
}

bool GpuHomes::Drop(pipeline::TensorIndex tensor) {
  const auto at = homes_.find(tensor);
  if (at == homes_.end()) return false;
  const GpuHome& home = at->second;
  if (!losses_.Has(home.gpu)) node_.DeviceOf(home.gpu).Free(home.allocated).IgnoreError();
  homes_.erase(at);
  return true;
}

void GpuHomes::DropAll() {
  while (!homes_.empty()) Drop(homes_.begin()->first);
}

absl::Status GpuHomes::Store(const pipeline::SliceBytes& slice, std::span<const std::byte> bytes) {
  const GpuHome& home = homes_.at(slice.tensor);
  return node_.DeviceOf(home.gpu).WriteNow(home.Bytes(slice), bytes);
}

absl::Status GpuHomes::Fetch(const pipeline::SliceBytes& slice, std::span<std::byte> bytes) {
  const GpuHome& home = homes_.at(slice.tensor);
  TALWEG_RETURN_IF_ERROR(Flush(home));
  return node_.DeviceOf(home.gpu).ReadNow(bytes, home.Bytes(slice));
}

const GpuHome* GpuHomes::Find(pipeline::TensorIndex tensor) const {
  const auto at = homes_.find(tensor);
  return at == homes_.end() ? nullptr : &at->second;
}

// A short contribution leaves in a frame, so it lies on the host. A result always lies on the GPU
// as a whole: after a new view slices are cut elsewhere, and bytes that came in a frame may leave
// as part of a longer slice.
const GpuHome* GpuHomes::HomeOf(const pipeline::SliceBytes& slice) const {
  const bool is_on_gpu =
      slice.memory == pipeline::Memory::kResult || slice.length_bytes > wire::kInlineBytesMax;
  return is_on_gpu ? Find(slice.tensor) : nullptr;
}

bool GpuHomes::AreOn(const gpu::GpuUuid& uuid) const {
  return std::any_of(homes_.begin(), homes_.end(),
                     [&](const auto& entry) { return entry.second.gpu == uuid; });
}

void GpuHomes::AddGpus(std::set<gpu::GpuUuid>& uuids) const {
  for (const auto& [tensor, home] : homes_) uuids.insert(home.gpu);
}

}  // namespace talweg::agent
