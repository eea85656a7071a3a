// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/fake/pinned_memory.h"

#include <absl/strings/str_cat.h>

#include <utility>
#include <vector>

#include "libs/base/bytes.h"
#include "libs/status/status.h"

namespace talweg::gpu::fake {

absl::Status PinnedMemory::CheckRoom(uint64_t bytes) const {
  if (world_.pinned_bytes + bytes <= world_.options.pinned_bytes_max) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot pin ", FormatBytes(bytes), " of host memory"));
}

absl::Status PinnedMemory::Pin(const FakeDevice* owner, std::span<std::byte> bytes,
                               std::unique_ptr<std::byte[]> allocated) {
  if (bytes.empty()) return absl::InvalidArgumentError("no bytes to pin");
  if (map_.Overlaps(AddressOf(bytes.data()), bytes.size())) {
    return absl::InvalidArgumentError(absl::StrCat("host memory at 0x",
                                                   absl::Hex(AddressOf(bytes.data())),
                                                   " is pinned already, in part or whole"));
  }
  TALWEG_RETURN_IF_ERROR(CheckRoom(bytes.size()));
  const auto region = std::make_shared<Region>();
  region->memory = std::make_shared<Memory>();
  region->memory->name = absl::StrCat("host memory 0x", absl::Hex(AddressOf(bytes.data())));
  region->memory->data = bytes.data();
  region->memory->bytes = bytes.size();
  region->owner = owner;
  region->allocated = std::move(allocated);
  map_.Insert(AddressOf(bytes.data()), bytes.size(), region);
  world_.pinned[AddressOf(bytes.data())] = region->memory;
  world_.pinned_bytes += bytes.size();
  return absl::OkStatus();
}

absl::Status PinnedMemory::Unpin(const FakeDevice* owner, std::span<std::byte> bytes,
                                 bool allocated, const DeviceStreams& streams) {
  const auto* const entry = map_.Find(AddressOf(bytes.data()));
  if (entry == nullptr || entry->bytes != bytes.size() || entry->value->owner != owner ||
      (entry->value->allocated != nullptr) != allocated) {
    return absl::InvalidArgumentError(absl::StrCat("host memory at 0x",
                                                   absl::Hex(AddressOf(bytes.data())),
                                                   " was not pinned so by this device"));
  }
  streams.CheckUnused(*entry->value->memory, "unpins");
  streams.CheckEnds(absl::StrCat("unpins ", entry->value->memory->name));
  Forget(bytes);
  return absl::OkStatus();
}

absl::StatusOr<Place> PinnedMemory::Resolve(std::span<const std::byte> bytes) const {
  TALWEG_ASSIGN_OR_RETURN(const auto holder,
                          map_.Holder(AddressOf(bytes.data()), bytes.size(), kPinnedMemory));
  if (known_lost_.contains(holder.second->value->owner)) {
    world_.Violate(absl::StrCat("copies to or from ", holder.second->value->memory->name,
                                ", which a context that is known to be lost had pinned"));
  }
  return Place{holder.second->value->memory, AddressOf(bytes.data()) - holder.first, bytes.size()};
}

void PinnedMemory::ForgetAllOf(const FakeDevice* owner) {
  std::vector<std::span<std::byte>> its;
  for (const auto& [address, entry] : map_.entries()) {
    if (entry.value->owner == owner) its.emplace_back(entry.value->memory->data, entry.bytes);
  }
  for (const std::span<std::byte> bytes : its) Forget(bytes);
  known_lost_.erase(owner);
}

void PinnedMemory::Forget(std::span<std::byte> bytes) {
  world_.pinned.erase(AddressOf(bytes.data()));
  world_.pinned_bytes -= bytes.size();
  map_.Erase(AddressOf(bytes.data()));
}

}  // namespace talweg::gpu::fake
