// SPDX-License-Identifier: Apache-2.0
//
// The memory of a GPU, and the host memory that this process has pinned.
#include <absl/strings/str_cat.h>

#include "libs/base/bytes.h"
#include "libs/gpu/cuda/cuda_device.h"
#include "libs/gpu/cuda/ipc_handle.h"
#include "libs/status/status.h"

namespace talweg::gpu::cuda {

absl::StatusOr<MemoryInfo> CudaDevice::Memory() {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  TALWEG_RETURN_IF_ERROR(
      context_->Check(api_.MemGetInfo(&free_bytes, &total_bytes), "cuMemGetInfo"));
  return MemoryInfo{free_bytes, total_bytes};
}

absl::StatusOr<DeviceSpan> CudaDevice::Allocate(uint64_t bytes) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  if (bytes == 0) return absl::InvalidArgumentError("an allocation of no bytes");
  CuDevicePointer address = 0;
  const absl::Status status = context_->Check(api_.MemAlloc(&address, bytes), "cuMemAlloc");
  if (!status.ok())
    return status::Annotate(status, absl::StrCat("allocating ", FormatBytes(bytes)));
  memory_.Insert(address, bytes, {});
  return DeviceSpan{address, bytes};
}

absl::Status CudaDevice::Free(DeviceSpan span) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  const auto* const entry = memory_.Find(span.address);
  if (entry == nullptr || entry->bytes != span.bytes || entry->value.imported) {
    return absl::InvalidArgumentError(
        absl::StrCat("0x", absl::Hex(span.address), " was not allocated here"));
  }
  memory_.Erase(span.address);
  return context_->Check(api_.MemFree(span.address), "cuMemFree");
}

absl::StatusOr<std::span<std::byte>> CudaDevice::AllocateHost(uint64_t bytes) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  return pinned_->Allocate(*context_, bytes);
}

absl::Status CudaDevice::FreeHost(std::span<std::byte> bytes) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  return pinned_->Unpin(*context_, bytes, true);
}

absl::Status CudaDevice::RegisterHost(std::span<std::byte> bytes) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  return pinned_->Register(*context_, bytes);
}

absl::Status CudaDevice::UnregisterHost(std::span<std::byte> bytes) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  return pinned_->Unpin(*context_, bytes, false);
}

absl::StatusOr<MemoryHandle> CudaDevice::Export(DeviceSpan span) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  const auto* const entry = memory_.Find(span.address);
  if (entry == nullptr || entry->bytes != span.bytes || entry->value.imported) {
    return absl::InvalidArgumentError(
        absl::StrCat("0x", absl::Hex(span.address), " was not allocated here"));
  }
  CuIpcHandle handle;
  TALWEG_RETURN_IF_ERROR(
      context_->CheckShared(api_.IpcGetMemHandle(&handle, span.address), "cuIpcGetMemHandle"));
  return FromDriver<MemoryHandle>(handle);
}

absl::StatusOr<DeviceSpan> CudaDevice::Map(const MemoryHandle& handle) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  CuDevicePointer address = 0;
  TALWEG_RETURN_IF_ERROR(
      context_->CheckShared(api_.IpcOpenMemHandle(&address, ToDriver(handle), kCuIpcLazyPeerAccess),
                            "cuIpcOpenMemHandle"));
  if (memory_.Find(address) != nullptr) {
    // The driver counts mappings, so the earlier mapping stays.
    TALWEG_RETURN_IF_ERROR(context_->Check(api_.IpcCloseMemHandle(address), "cuIpcCloseMemHandle"));
    return absl::InvalidArgumentError("the handle's memory is mapped already");
  }
  // Asks the driver for the memory's size, because the sender of the handle is not trusted.
  CuDevicePointer base = 0;
  size_t bytes = 0;
  absl::Status status =
      context_->Check(api_.MemGetAddressRange(&base, &bytes, address), "cuMemGetAddressRange");
  // A small allocation lies in a larger block with others, which are mapped with it.
  const uint64_t before = address - base;
  if (status.ok() && (address < base || before >= bytes)) {
    status = absl::UnimplementedError(
        absl::StrCat("the driver does not say how large a mapping on ", Describe(info()), " is"));
  }
  if (!status.ok()) {
    api_.IpcCloseMemHandle(address);
    return status;
  }
  const DeviceSpan span = {address, bytes - before};
  memory_.Insert(span.address, span.bytes, {true});
  return span;
}

absl::Status CudaDevice::Unmap(DeviceSpan span) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  const auto* const entry = memory_.Find(span.address);
  if (entry == nullptr || entry->bytes != span.bytes || !entry->value.imported) {
    return absl::InvalidArgumentError(
        absl::StrCat("0x", absl::Hex(span.address), " is not mapped here"));
  }
  memory_.Erase(span.address);
  return context_->Check(api_.IpcCloseMemHandle(span.address), "cuIpcCloseMemHandle");
}

absl::Status CudaDevice::CheckSpan(DeviceSpan span) const {
  return memory_.Holder(span.address, span.bytes, kDeviceMemory).status();
}

}  // namespace talweg::gpu::cuda
