// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/import_cache.h"

#include <absl/strings/str_cat.h>

#include "libs/base/check.h"
#include "libs/status/status.h"

namespace talweg::gpu {

ImportCache::~ImportCache() {
  for (const auto& [handle, mapping] : mappings_) device_.Unmap(mapping.span).IgnoreError();
}

absl::StatusOr<DeviceSpan> ImportCache::Map(const ForeignAllocation& allocation,
                                            const MemoryHandle& handle) {
  const auto known = allocations_.find(allocation);
  if (known != allocations_.end()) {
    if (known->second == handle) return mappings_.at(handle).span;
    return absl::InvalidArgumentError(absl::StrCat("allocation ", allocation.buffer_id, " on ",
                                                   Describe(device_.info()),
                                                   " came with two different handles"));
  }
  const auto first = allocations_.lower_bound({allocation.owner, 0});
  size_t owned = 0;
  for (auto at = first; at != allocations_.end() && at->first.owner == allocation.owner; ++at) {
    ++owned;
    if (at->second == handle) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the handle of allocation ", allocation.buffer_id, " on ", Describe(device_.info()),
          " is that of allocation ", at->first.buffer_id, ", which was not released"));
    }
  }
  if (owned >= allocations_max_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a process has ", owned, " allocations mapped on ", Describe(device_.info()),
        ", which is the limit: it must release some (allocate gradients in fewer, larger pieces)"));
  }
  auto mapping = mappings_.find(handle);
  if (mapping == mappings_.end()) {
    TALWEG_ASSIGN_OR_RETURN(const DeviceSpan span, device_.Map(handle));
    mapping = mappings_.emplace(handle, Mapping{span, {}}).first;
  }
  mapping->second.users.insert(allocation);
  allocations_.emplace(allocation, handle);
  return mapping->second.span;
}

absl::Status ImportCache::Release(const ForeignAllocation& allocation) {
  const auto known = allocations_.find(allocation);
  if (known == allocations_.end()) return absl::OkStatus();
  const auto mapping = mappings_.find(known->second);
  TALWEG_CHECK(mapping != mappings_.end());
  allocations_.erase(known);
  mapping->second.users.erase(allocation);
  if (!mapping->second.users.empty()) return absl::OkStatus();
  const DeviceSpan span = mapping->second.span;
  mappings_.erase(mapping);
  return device_.Unmap(span);
}

absl::Status ImportCache::ReleaseOwner(Incarnation owner) {
  absl::Status status;
  for (;;) {
    const auto at = allocations_.lower_bound({owner, 0});
    if (at == allocations_.end() || at->first.owner != owner) return status;
    const ForeignAllocation released = at->first;  // The entry ends with it.
    status.Update(Release(released));
  }
}

uint64_t ImportCache::mapped_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [handle, mapping] : mappings_) bytes += mapping.span.bytes;
  return bytes;
}

}  // namespace talweg::gpu
