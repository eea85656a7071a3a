// SPDX-License-Identifier: Apache-2.0
//
// A NIC's access to a GPU: memory that it may reach, and flushes of its writes.
#include <absl/strings/str_cat.h>

#include <utility>

#include "libs/gpu/cuda/cuda_device.h"
#include "libs/status/status.h"

namespace talweg::gpu::cuda {

absl::StatusOr<NicMemory> CudaDevice::OpenToNic(DeviceSpan span) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  TALWEG_ASSIGN_OR_RETURN(const auto holder, HolderForNic(memory_, span));
  TALWEG_RETURN_IF_ERROR(NicsReach(api_, context_->device(), Describe(info())));
  const unsigned yes = 1;
  TALWEG_RETURN_IF_ERROR(
      context_->Check(api_.PointerSetAttribute(&yes, kCuPointerSyncMemops, holder.first),
                      "cuPointerSetAttribute(SYNC_MEMOPS)"));
  NicMemory memory{.address = span.address, .bytes = span.bytes, .device = context_->device()};
  int fd = -1;
  // Without a dma-buf the NIC's driver finds the memory by its address, if the kernel has
  // nvidia-peermem. The registration says whether it has.
  const bool has_dma_buf = Attribute(api_, context_->device(), kCuAttributeDmaBufSupported) != 0;
  if (has_dma_buf && api_.MemGetHandleForAddressRange != nullptr &&
      api_.MemGetHandleForAddressRange(&fd, span.address, span.bytes, kCuRangeHandleDmaBuf, 0) ==
          kCuSuccess) {
    memory.dma_buf.Reset(fd);
  }
  return memory;
}

absl::Status CudaDevice::FlushNicWrites() {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  if (Attribute(api_, context_->device(), kCuAttributeRdmaWritesOrdering) >= kCuRdmaOrderingOwner) {
    return absl::OkStatus();
  }
  return context_->Check(api_.FlushRdmaWrites(kCuRdmaFlushCurrentContext, kCuRdmaFlushToOwner),
                         "cuFlushGPUDirectRDMAWrites");
}

absl::Status CudaDevice::ReadNow(std::span<std::byte> target, DeviceSpan source) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  TALWEG_RETURN_IF_ERROR(CheckCopy(target.size(), source.bytes));
  TALWEG_RETURN_IF_ERROR(CheckSpan(source));
  return context_->Check(api_.MemcpyDtoH(target.data(), source.address, source.bytes),
                         "cuMemcpyDtoH");
}

// Memory that is open to NICs is marked, so that the driver waits for the last byte.
absl::Status CudaDevice::WriteNow(DeviceSpan target, std::span<const std::byte> source) {
  TALWEG_RETURN_IF_ERROR(context_->Enter());
  TALWEG_RETURN_IF_ERROR(CheckCopy(target.bytes, source.size()));
  TALWEG_RETURN_IF_ERROR(CheckSpan(target));
  return context_->Check(api_.MemcpyHtoD(target.address, source.data(), source.size()),
                         "cuMemcpyHtoD");
}

}  // namespace talweg::gpu::cuda
