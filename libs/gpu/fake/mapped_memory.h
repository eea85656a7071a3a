// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_FAKE_MAPPED_MEMORY_H_
#define TALWEG_LIBS_GPU_FAKE_MAPPED_MEMORY_H_

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "libs/base/bytes.h"
#include "libs/gpu/address_map.h"
#include "libs/gpu/device.h"
#include "libs/gpu/fake/place.h"
#include "libs/gpu/fake/world.h"
#include "libs/status/status.h"

namespace talweg::gpu::fake {

// The memory of a GPU that one process has, its own and others', by address.
class MappedMemory {
 public:
  struct Mapped {
    std::shared_ptr<Memory> memory;
    bool imported = false;
  };

  explicit MappedMemory(uint64_t first_address) : next_address_(first_address) {}

  // Returns the addresses of the next piece. A gap follows it, so that no access runs into the next
  // piece.
  DeviceSpan NewSpan(uint64_t bytes) {
    const DeviceSpan span = {next_address_, bytes};
    next_address_ += RoundUp(bytes, 256) + 4096;
    return span;
  }
  void Add(DeviceSpan span, Mapped mapped) {
    map_.Insert(span.address, span.bytes, std::move(mapped));
  }
  void Remove(DeviceSpan span) { map_.Erase(span.address); }

  // Returns null if no piece begins and ends there, or if it is not of this kind.
  const std::shared_ptr<Memory>* Find(DeviceSpan span, bool imported) const {
    const auto* const entry = map_.Find(span.address);
    const bool found =
        entry != nullptr && entry->bytes == span.bytes && entry->value.imported == imported;
    return found ? &entry->value.memory : nullptr;
  }
  absl::StatusOr<Place> Resolve(DeviceSpan span) const {
    TALWEG_ASSIGN_OR_RETURN(const auto holder,
                            map_.Holder(span.address, span.bytes, kDeviceMemory));
    return Place{holder.second->value.memory, span.address - holder.first, span.bytes};
  }
  const AddressMap<Mapped>& map() const { return map_; }

 private:
  AddressMap<Mapped> map_;
  uint64_t next_address_;
};

}  // namespace talweg::gpu::fake

#endif  // TALWEG_LIBS_GPU_FAKE_MAPPED_MEMORY_H_
