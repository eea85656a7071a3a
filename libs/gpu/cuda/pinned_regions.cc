// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/cuda/pinned_regions.h"

#include <absl/strings/str_cat.h>

#include <utility>
#include <vector>

#include "libs/base/bytes.h"
#include "libs/status/status.h"

namespace talweg::gpu::cuda {

absl::StatusOr<std::span<std::byte>> PinnedRegions::Allocate(CudaContext& context, uint64_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("no bytes to pin");
  void* host = nullptr;
  const absl::Status status =
      context.Check(context.driver().MemHostAlloc(&host, bytes, kCuHostPortable), "cuMemHostAlloc");
  if (!status.ok()) return status::Annotate(status, absl::StrCat("pinning ", FormatBytes(bytes)));
  map_.Insert(AddressOf(host), bytes, {&context, true});
  return std::span<std::byte>(static_cast<std::byte*>(host), bytes);
}

absl::Status PinnedRegions::Register(CudaContext& context, std::span<std::byte> bytes) {
  if (bytes.empty()) return absl::InvalidArgumentError("no bytes to pin");
  if (map_.Overlaps(AddressOf(bytes.data()), bytes.size())) {
    return absl::InvalidArgumentError(absl::StrCat("host memory at 0x",
                                                   absl::Hex(AddressOf(bytes.data())),
                                                   " is pinned already, in part or whole"));
  }
  const absl::Status status =
      context.Check(context.driver().MemHostRegister(bytes.data(), bytes.size(), kCuHostPortable),
                    "cuMemHostRegister");
  if (!status.ok()) {
    return status::Annotate(status, absl::StrCat("pinning ", FormatBytes(bytes.size())));
  }
  map_.Insert(AddressOf(bytes.data()), bytes.size(), {&context, false});
  return absl::OkStatus();
}

absl::Status PinnedRegions::Unpin(CudaContext& context, std::span<std::byte> bytes,
                                  bool allocated) {
  const auto* const entry = map_.Find(AddressOf(bytes.data()));
  if (entry == nullptr || entry->bytes != bytes.size() || entry->value.owner != &context ||
      entry->value.allocated != allocated) {
    return absl::InvalidArgumentError(absl::StrCat("host memory at 0x",
                                                   absl::Hex(AddressOf(bytes.data())),
                                                   " was not pinned so by this device"));
  }
  map_.Erase(AddressOf(bytes.data()));
  const DriverApi& api = context.driver();
  return allocated ? context.Check(api.MemFreeHost(bytes.data()), "cuMemFreeHost")
                   : context.Check(api.MemHostUnregister(bytes.data()), "cuMemHostUnregister");
}

void PinnedRegions::UnpinAllOf(const CudaContext& context) {
  std::vector<std::pair<uint64_t, bool>> mine;
  for (const auto& [address, entry] : map_.entries()) {
    if (entry.value.owner == &context) mine.emplace_back(address, entry.value.allocated);
  }
  for (const auto& [address, allocated] : mine) {
    void* const host = reinterpret_cast<void*>(address);
    if (allocated) {
      context.driver().MemFreeHost(host);
    } else {
      context.driver().MemHostUnregister(host);
    }
    map_.Erase(address);
  }
}

absl::Status PinnedRegions::Check(std::span<const std::byte> bytes) const {
  return map_.Holder(AddressOf(bytes.data()), bytes.size(), kPinnedMemory).status();
}

}  // namespace talweg::gpu::cuda
