// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_CUDA_PINNED_REGIONS_H_
#define TALWEG_LIBS_GPU_CUDA_PINNED_REGIONS_H_

#include <absl/status/status.h>

#include <cstddef>
#include <span>

#include "libs/gpu/address_map.h"
#include "libs/gpu/cuda/cuda_context.h"

namespace talweg::gpu::cuda {

// Pinned memory of this process, for all its devices. The context that has pinned memory unpins it.
// A `context` argument must be current.
class PinnedRegions {
 public:
  absl::StatusOr<std::span<std::byte>> Allocate(CudaContext& context, uint64_t bytes);
  // Pins memory of the caller.
  absl::Status Register(CudaContext& context, std::span<std::byte> bytes);
  // INVALID_ARGUMENT: this context has not allocated the memory, or not registered it.
  absl::Status Unpin(CudaContext& context, std::span<std::byte> bytes, bool allocated);
  // Unpins all memory of a context that ends. Ignores errors.
  void UnpinAllOf(const CudaContext& context);

  // INVALID_ARGUMENT unless all of these bytes are pinned.
  absl::Status Check(std::span<const std::byte> bytes) const;

 private:
  struct Region {
    const CudaContext* owner = nullptr;
    bool allocated = false;
  };

  AddressMap<Region> map_;
};

}  // namespace talweg::gpu::cuda

#endif  // TALWEG_LIBS_GPU_CUDA_PINNED_REGIONS_H_
