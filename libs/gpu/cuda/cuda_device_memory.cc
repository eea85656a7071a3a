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
  TALWEG_RETURN_IF_ERROR(Enter());
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  TALWEG_RETURN_IF_ERROR(Check(driver_->MemGetInfo(&free_bytes, &total_bytes), "cuMemGetInfo"));
  return MemoryInfo{free_bytes, total_bytes};
}

absl::StatusOr<DeviceSpan> CudaDevice::Allocate(uint64_t bytes) {
  TALWEG_RETURN_IF_ERROR(Enter());
  if (bytes == 0) return absl::InvalidArgumentError("an allocation of no bytes");
  CuDevicePointer address = 0;
  const absl::Status status = Check(driver_->MemAlloc(&address, bytes), "cuMemAlloc");
  if (!status.ok())
    return status::Annotate(status, absl::StrCat("allocating ", FormatBytes(bytes)));
  memory_.Insert(address, bytes, {});
  return DeviceSpan{address, bytes};
}

absl::Status CudaDevice::Free(DeviceSpan span) {
  TALWEG_RETURN_IF_ERROR(Enter());
  const auto* const entry = memory_.Find(span.address);
  if (entry == nullptr || entry->bytes != span.bytes || entry->value.imported) {
    return absl::InvalidArgumentError(
        absl::StrCat("0x", absl::Hex(span.address), " was not allocated here"));
  }
  memory_.Erase(span.address);
  return Check(driver_->MemFree(span.address), "cuMemFree");
}

absl::StatusOr<std::span<std::byte>> CudaDevice::AllocateHost(uint64_t bytes) {
  TALWEG_RETURN_IF_ERROR(Enter());
  if (bytes == 0) return absl::InvalidArgumentError("no bytes to pin");
  void* host = nullptr;
  const absl::Status status =
      Check(driver_->MemHostAlloc(&host, bytes, kCuHostPortable), "cuMemHostAlloc");
  if (!status.ok()) return status::Annotate(status, absl::StrCat("pinning ", FormatBytes(bytes)));
  pinned_->Insert(AddressOf(host), bytes, {this, true});
  return std::span<std::byte>(static_cast<std::byte*>(host), bytes);
}

absl::Status CudaDevice::Unpin(std::span<std::byte> bytes, bool allocated) {
  TALWEG_RETURN_IF_ERROR(Enter());
  const auto* const entry = pinned_->Find(AddressOf(bytes.data()));
  if (entry == nullptr || entry->bytes != bytes.size() || entry->value.owner != this ||
      entry->value.allocated != allocated) {
    return absl::InvalidArgumentError(absl::StrCat("host memory at 0x",
                                                   absl::Hex(AddressOf(bytes.data())),
                                                   " was not pinned so by this device"));
  }
  pinned_->Erase(AddressOf(bytes.data()));
  return allocated ? Check(driver_->MemFreeHost(bytes.data()), "cuMemFreeHost")
                   : Check(driver_->MemHostUnregister(bytes.data()), "cuMemHostUnregister");
}

absl::Status CudaDevice::FreeHost(std::span<std::byte> bytes) { return Unpin(bytes, true); }

absl::Status CudaDevice::RegisterHost(std::span<std::byte> bytes) {
  TALWEG_RETURN_IF_ERROR(Enter());
  if (bytes.empty()) return absl::InvalidArgumentError("no bytes to pin");
  if (pinned_->Overlaps(AddressOf(bytes.data()), bytes.size())) {
    return absl::InvalidArgumentError(absl::StrCat("host memory at 0x",
                                                   absl::Hex(AddressOf(bytes.data())),
                                                   " is pinned already, in part or whole"));
  }
  const absl::Status status = Check(
      driver_->MemHostRegister(bytes.data(), bytes.size(), kCuHostPortable), "cuMemHostRegister");
  if (!status.ok())
    return status::Annotate(status, absl::StrCat("pinning ", FormatBytes(bytes.size())));
  pinned_->Insert(AddressOf(bytes.data()), bytes.size(), {this, false});
  return absl::OkStatus();
}

absl::Status CudaDevice::UnregisterHost(std::span<std::byte> bytes) { return Unpin(bytes, false); }

absl::StatusOr<MemoryHandle> CudaDevice::Export(DeviceSpan span) {
  TALWEG_RETURN_IF_ERROR(Enter());
  const auto* const entry = memory_.Find(span.address);
  if (entry == nullptr || entry->bytes != span.bytes || entry->value.imported) {
    return absl::InvalidArgumentError(
        absl::StrCat("0x", absl::Hex(span.address), " was not allocated here"));
  }
  CuIpcHandle handle;
  TALWEG_RETURN_IF_ERROR(
      CheckShared(driver_->IpcGetMemHandle(&handle, span.address), "cuIpcGetMemHandle"));
  return FromDriver<MemoryHandle>(handle);
}

absl::StatusOr<DeviceSpan> CudaDevice::Map(const MemoryHandle& handle) {
  TALWEG_RETURN_IF_ERROR(Enter());
  CuDevicePointer address = 0;
  TALWEG_RETURN_IF_ERROR(
      CheckShared(driver_->IpcOpenMemHandle(&address, ToDriver(handle), kCuIpcLazyPeerAccess),
                  "cuIpcOpenMemHandle"));
  if (memory_.Find(address) != nullptr) {
    // The driver counts, so the mapping that was there stays.
    TALWEG_RETURN_IF_ERROR(Check(driver_->IpcCloseMemHandle(address), "cuIpcCloseMemHandle"));
    return absl::InvalidArgumentError("the handle's memory is mapped already");
  }
  // The driver says how far the memory goes, because the sender of the handle is not to be
  // believed.
  CuDevicePointer base = 0;
  size_t bytes = 0;
  absl::Status status =
      Check(driver_->MemGetAddressRange(&base, &bytes, address), "cuMemGetAddressRange");
  // A small allocation lies in a larger block with others, which are mapped with it.
  const uint64_t before = address - base;
  if (status.ok() && (address < base || before >= bytes)) {
    status = absl::UnimplementedError(
        absl::StrCat("the driver does not say how large a mapping on ", Describe(info_), " is"));
  }
  if (!status.ok()) {
    driver_->IpcCloseMemHandle(address);
    return status;
  }
  const DeviceSpan span = {address, bytes - before};
  memory_.Insert(span.address, span.bytes, {true});
  return span;
}

absl::Status CudaDevice::Unmap(DeviceSpan span) {
  TALWEG_RETURN_IF_ERROR(Enter());
  const auto* const entry = memory_.Find(span.address);
  if (entry == nullptr || entry->bytes != span.bytes || !entry->value.imported) {
    return absl::InvalidArgumentError(
        absl::StrCat("0x", absl::Hex(span.address), " is not mapped here"));
  }
  memory_.Erase(span.address);
  return Check(driver_->IpcCloseMemHandle(span.address), "cuIpcCloseMemHandle");
}

absl::Status CudaDevice::CheckSpan(DeviceSpan span) const {
  return memory_.Holder(span.address, span.bytes, kDeviceMemory).status();
}

absl::Status CudaDevice::CheckHost(std::span<const std::byte> bytes) const {
  return pinned_->Holder(AddressOf(bytes.data()), bytes.size(), kPinnedMemory).status();
}

}  // namespace talweg::gpu::cuda
