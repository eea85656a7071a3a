// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_IMPORT_CACHE_H_
#define TALWEG_LIBS_GPU_IMPORT_CACHE_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>

#include "libs/base/ids.h"
#include "libs/gpu/device.h"

namespace talweg::gpu {

// One allocation of another process: that process's life, and its driver's number for the
// allocation, which is never reused in that life. So memory that was freed and allocated anew is
// another allocation, also at the same address.
struct ForeignAllocation {
  Incarnation owner;
  uint64_t buffer_id = 0;

  friend auto operator<=>(const ForeignAllocation&, const ForeignAllocation&) = default;
};

// The allocations of other processes that are mapped on one device. Each is mapped once, until its
// owner lets go of it or dies. Belongs to the device's thread. The device outlives it.
class ImportCache {
 public:
  // allocations_max bounds each owner, so that no owner takes without end.
  ImportCache(Device& device, size_t allocations_max)
      : device_(device), allocations_max_(allocations_max) {}
  // Unmaps everything.
  ~ImportCache();
  ImportCache(const ImportCache&) = delete;
  ImportCache& operator=(const ImportCache&) = delete;

  // The whole allocation, mapped now or earlier. The failures are those of Device::Map.
  // INVALID_ARGUMENT also when the allocation came with another handle before, or the handle
  // belongs to an allocation of this owner that was not released. RESOURCE_EXHAUSTED past
  // allocations_max.
  absl::StatusOr<DeviceSpan> Map(const ForeignAllocation& allocation, const MemoryHandle& handle);

  // The owner may free the allocation afterwards. The caller has seen the end of all work that uses
  // it. An allocation that is not mapped is ignored.
  absl::Status Release(const ForeignAllocation& allocation);
  // Releases all that this owner has. Returns the first failure, having released the rest.
  absl::Status ReleaseOwner(Incarnation owner);

  size_t mapped_count() const { return mappings_.size(); }
  uint64_t mapped_bytes() const;

 private:
  struct Mapping {
    DeviceSpan span;
    std::set<ForeignAllocation> users;
  };

  Device& device_;
  const size_t allocations_max_;
  std::map<ForeignAllocation, MemoryHandle> allocations_;
  std::map<MemoryHandle, Mapping> mappings_;
};

}  // namespace talweg::gpu

#endif  // TALWEG_LIBS_GPU_IMPORT_CACHE_H_
