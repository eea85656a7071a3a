// SPDX-License-Identifier: Apache-2.0
//
// The memory of a fake GPU, and the host memory that its process has pinned.
#include <absl/strings/str_cat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "libs/base/bytes.h"
#include "libs/gpu/fake/fake_device.h"
#include "libs/status/status.h"

namespace talweg::gpu::fake {

absl::StatusOr<MemoryInfo> FakeDevice::Memory() {
  TALWEG_RETURN_IF_ERROR(Ready());
  return MemoryInfo{world_.FreeBytes(state()), state().info.memory_bytes};
}

uint64_t FakeDevice::Place256(uint64_t bytes) {
  const uint64_t address = next_address_;
  // A hole after each piece, so that nothing runs on into the next.
  next_address_ += RoundUp(bytes, 256) + 4096;
  return address;
}

absl::StatusOr<DeviceSpan> FakeDevice::Allocate(uint64_t bytes) {
  TALWEG_RETURN_IF_ERROR(Ready());
  if (bytes == 0) return absl::InvalidArgumentError("an allocation of no bytes");
  if (bytes > world_.FreeBytes(state())) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Describe(info()), " has ", FormatBytes(world_.FreeBytes(state())), " free of ",
                     FormatBytes(info().memory_bytes), ", not ", FormatBytes(bytes)));
  }
  const DeviceSpan span = {Place256(bytes), bytes};
  const auto memory = std::make_shared<fake::Memory>();
  memory->name = absl::StrCat("GPU ", gpu_, "'s 0x", absl::Hex(span.address));
  memory->gpu = gpu_;
  memory->storage.resize(bytes, kPoison);
  memory->data = memory->storage.data();
  memory->bytes = bytes;
  state().allocated_bytes += bytes;
  memory_.Insert(span.address, bytes, {memory});
  return span;
}

void FakeDevice::CheckUnused(const fake::Memory& memory, const char* doing) const {
  const auto unfinished = memory.log.Unfinished(
      world_.host_clock, [this](Actor actor) { return actors_.contains(actor); });
  if (unfinished) {
    world_.Violate(
        absl::StrCat(doing, " ", memory.name, " while ", unfinished->what, " may still use it"));
  }
}

void FakeDevice::CheckEnds(const std::string& doing) const {
  for (const Actor actor : actors_) {
    const char* const why = world_.timeline.MayNeverEnd(actor, actors_);
    if (why != nullptr) {
      world_.Violate(
          absl::StrCat(doing, ", which waits for stream ", actor, ", and that for ", why));
    }
  }
}

absl::Status FakeDevice::Free(DeviceSpan span) {
  TALWEG_RETURN_IF_ERROR(Ready());
  const auto* const entry = memory_.Find(span.address);
  if (entry == nullptr || entry->bytes != span.bytes || entry->value.imported) {
    return absl::InvalidArgumentError(
        absl::StrCat("0x", absl::Hex(span.address), " was not allocated here"));
  }
  fake::Memory& memory = *entry->value.memory;
  CheckUnused(memory, "frees");
  CheckEnds(absl::StrCat("frees ", memory.name));
  if (memory.mappings > 0) {
    world_.Violate(absl::StrCat("frees ", memory.name, ", which another process has mapped"));
  }
  memory.owner_gone = true;
  world_.ForgetIfUnused(memory);
  memory_.Erase(span.address);
  return absl::OkStatus();
}

absl::Status FakeDevice::Pin(std::span<std::byte> bytes, std::unique_ptr<std::byte[]> allocated) {
  if (bytes.empty()) return absl::InvalidArgumentError("no bytes to pin");
  if (pinned_->map.Overlaps(AddressOf(bytes.data()), bytes.size())) {
    return absl::InvalidArgumentError(absl::StrCat("host memory at 0x",
                                                   absl::Hex(AddressOf(bytes.data())),
                                                   " is pinned already, in part or whole"));
  }
  if (world_.pinned_bytes + bytes.size() > world_.options.pinned_bytes_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot pin ", FormatBytes(bytes.size()), " of host memory"));
  }
  const auto region = std::make_shared<PinnedRegions::Region>();
  region->memory = std::make_shared<fake::Memory>();
  region->memory->name = absl::StrCat("host memory 0x", absl::Hex(AddressOf(bytes.data())));
  region->memory->data = bytes.data();
  region->memory->bytes = bytes.size();
  region->owner = this;
  region->allocated = std::move(allocated);
  pinned_->map.Insert(AddressOf(bytes.data()), bytes.size(), region);
  world_.pinned[AddressOf(bytes.data())] = region->memory;
  world_.pinned_bytes += bytes.size();
  return absl::OkStatus();
}

absl::Status FakeDevice::Unpin(std::span<std::byte> bytes, bool allocated) {
  const auto* const entry = pinned_->map.Find(AddressOf(bytes.data()));
  if (entry == nullptr || entry->bytes != bytes.size() || entry->value->owner != this ||
      (entry->value->allocated != nullptr) != allocated) {
    return absl::InvalidArgumentError(absl::StrCat("host memory at 0x",
                                                   absl::Hex(AddressOf(bytes.data())),
                                                   " was not pinned so by this device"));
  }
  CheckUnused(*entry->value->memory, "unpins");
  CheckEnds(absl::StrCat("unpins ", entry->value->memory->name));
  ForgetPinned(bytes);
  return absl::OkStatus();
}

void FakeDevice::ForgetPinned(std::span<std::byte> bytes) {
  world_.pinned.erase(AddressOf(bytes.data()));
  world_.pinned_bytes -= bytes.size();
  pinned_->map.Erase(AddressOf(bytes.data()));
}

absl::StatusOr<std::span<std::byte>> FakeDevice::AllocateHost(uint64_t bytes) {
  TALWEG_RETURN_IF_ERROR(Ready());
  if (world_.pinned_bytes + bytes > world_.options.pinned_bytes_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot pin ", FormatBytes(bytes), " of host memory"));
  }
  if (syscall(SYS_get_mempolicy, &world_.pinning_policy, nullptr, 0, nullptr, 0) != 0) {
    world_.pinning_policy = -1;
  }
  auto allocated = std::make_unique<std::byte[]>(bytes);
  const std::span<std::byte> span(allocated.get(), bytes);
  TALWEG_RETURN_IF_ERROR(Pin(span, std::move(allocated)));
  return span;
}

absl::Status FakeDevice::FreeHost(std::span<std::byte> bytes) {
  TALWEG_RETURN_IF_ERROR(Ready());
  return Unpin(bytes, true);
}

absl::Status FakeDevice::RegisterHost(std::span<std::byte> bytes) {
  TALWEG_RETURN_IF_ERROR(Ready());
  return Pin(bytes, nullptr);
}

absl::Status FakeDevice::UnregisterHost(std::span<std::byte> bytes) {
  TALWEG_RETURN_IF_ERROR(Ready());
  return Unpin(bytes, false);
}

absl::StatusOr<MemoryHandle> FakeDevice::Export(DeviceSpan span) {
  TALWEG_RETURN_IF_ERROR(Ready());
  const auto* const entry = memory_.Find(span.address);
  if (entry == nullptr || entry->bytes != span.bytes || entry->value.imported) {
    return absl::InvalidArgumentError(
        absl::StrCat("0x", absl::Hex(span.address), " was not allocated here"));
  }
  for (const auto& [handle, memory] : world_.exported_memory) {
    if (memory.lock() == entry->value.memory) return handle;
  }
  const MemoryHandle handle = {world_.NewHandle()};
  world_.exported_memory[handle] = entry->value.memory;
  return handle;
}

absl::StatusOr<DeviceSpan> FakeDevice::Map(const MemoryHandle& handle) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_RETURN_IF_ERROR(world_.import_refusal);
  const auto known = world_.exported_memory.find(handle);
  const auto memory = known == world_.exported_memory.end() ? nullptr : known->second.lock();
  if (memory == nullptr || memory->owner_gone || memory->gpu != gpu_) {
    return absl::InvalidArgumentError(absl::StrCat("not a handle of memory on ", Describe(info())));
  }
  for (const auto& [address, entry] : memory_.entries()) {
    if (entry.value.memory == memory) {
      return absl::InvalidArgumentError(entry.value.imported
                                            ? "the handle's memory is mapped already"
                                            : "the handle's memory is this process's own");
    }
  }
  const DeviceSpan span = {Place256(memory->bytes), memory->bytes};
  ++memory->mappings;
  ++world_.mapping_count;
  memory_.Insert(span.address, span.bytes, {memory, true});
  return span;
}

absl::Status FakeDevice::Unmap(DeviceSpan span) {
  TALWEG_RETURN_IF_ERROR(Ready());
  const auto* const entry = memory_.Find(span.address);
  if (entry == nullptr || entry->bytes != span.bytes || !entry->value.imported) {
    return absl::InvalidArgumentError(
        absl::StrCat("0x", absl::Hex(span.address), " is not mapped here"));
  }
  fake::Memory& memory = *entry->value.memory;
  CheckUnused(memory, "unmaps");
  CheckEnds(absl::StrCat("unmaps ", memory.name));
  --memory.mappings;
  --world_.mapping_count;
  world_.ForgetIfUnused(memory);
  memory_.Erase(span.address);
  return absl::OkStatus();
}

absl::StatusOr<Place> FakeDevice::Resolve(DeviceSpan span) const {
  TALWEG_ASSIGN_OR_RETURN(const auto holder,
                          memory_.Holder(span.address, span.bytes, kDeviceMemory));
  return Place{holder.second->value.memory, span.address - holder.first, span.bytes};
}

absl::StatusOr<Place> FakeDevice::ResolveHost(std::span<const std::byte> bytes) const {
  TALWEG_ASSIGN_OR_RETURN(
      const auto holder, pinned_->map.Holder(AddressOf(bytes.data()), bytes.size(), kPinnedMemory));
  if (holder.second->value->owner->is_known_lost_) {
    world_.Violate(absl::StrCat("copies to or from ", holder.second->value->memory->name,
                                ", which a context that is known to be lost had pinned"));
  }
  return Place{holder.second->value->memory, AddressOf(bytes.data()) - holder.first, bytes.size()};
}

}  // namespace talweg::gpu::fake
