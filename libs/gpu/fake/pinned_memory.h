// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_FAKE_PINNED_MEMORY_H_
#define TALWEG_LIBS_GPU_FAKE_PINNED_MEMORY_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>

#include "libs/gpu/address_map.h"
#include "libs/gpu/fake/device_streams.h"
#include "libs/gpu/fake/place.h"
#include "libs/gpu/fake/world.h"

namespace talweg::gpu::fake {

// Pinned memory of one process, for all its devices. The owner of a region is the device that
// pinned it.
class PinnedMemory {
 public:
  // The world outlives this object.
  explicit PinnedMemory(World& world) : world_(world) {}

  // RESOURCE_EXHAUSTED: more than the machine can pin.
  absl::Status CheckRoom(uint64_t bytes) const;
  // `allocated`: owns the bytes if they are not the caller's.
  absl::Status Pin(const FakeDevice* owner, std::span<std::byte> bytes,
                   std::unique_ptr<std::byte[]> allocated);
  // `streams`: the owner's. They must not use the memory any more.
  absl::Status Unpin(const FakeDevice* owner, std::span<std::byte> bytes, bool allocated,
                     const DeviceStreams& streams);
  absl::StatusOr<Place> Resolve(std::span<const std::byte> bytes) const;

  // From now on a copy to or from memory that the device has pinned is a violation.
  void OnKnownLost(const FakeDevice* owner) { known_lost_.insert(owner); }
  // The device is gone, with all memory that it has pinned.
  void ForgetAllOf(const FakeDevice* owner);

 private:
  struct Region {
    std::shared_ptr<Memory> memory;
    const FakeDevice* owner = nullptr;
    std::unique_ptr<std::byte[]> allocated;
  };

  void Forget(std::span<std::byte> bytes);

  World& world_;
  AddressMap<std::shared_ptr<Region>> map_;
  std::set<const FakeDevice*> known_lost_;
};

}  // namespace talweg::gpu::fake

#endif  // TALWEG_LIBS_GPU_FAKE_PINNED_MEMORY_H_
