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

// One allocation of another process: that process's life, and its driver's number of the
// allocation, which is never reused in that life. So memory that was freed and allocated again is
// another allocation, even at the same address.
struct ForeignAllocation {
  Incarnation owner;
  uint64_t buffer_id = 0;

  friend auto operator<=>(const ForeignAllocation&, const ForeignAllocation&) = default;
};

// The allocations of other processes that are mapped on one device. Each is mapped once, until its
// owner releases it or dies. Owned by the device's thread. The device outlives this object.
class ImportCache {
 public:
  // Each owner may have at most `allocations_max` allocations.
  ImportCache(Device& device, size_t allocations_max)
      : device_(device), allocations_max_(allocations_max) {}
  // Unmaps everything.
  ~ImportCache();
  ImportCache(const ImportCache&) = delete;
  ImportCache& operator=(const ImportCache&) = delete;

  // Returns the whole allocation, mapped now or earlier. The errors are those of Device::Map.
  // INVALID_ARGUMENT also if the allocation came with another handle before, or the handle belongs
  // to an allocation of this owner that was not released. RESOURCE_EXHAUSTED: more than
  // `allocations_max`.
  absl::StatusOr<DeviceSpan> Map(const ForeignAllocation& allocation, const MemoryHandle& handle);

  // Unmaps the allocation, which the owner may then free. The caller must have seen the end of all
  // work that uses it. Ignores an allocation that is not mapped.
  absl::Status Release(const ForeignAllocation& allocation);
  // Releases all allocations of this owner. Returns the first error, after it has released the
  // rest.
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
