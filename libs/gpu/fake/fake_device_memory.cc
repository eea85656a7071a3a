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
  return MemoryInfo{world_.FreeBytes(state_), state_.info.memory_bytes};
}

absl::StatusOr<DeviceSpan> FakeDevice::Allocate(uint64_t bytes) {
  TALWEG_RETURN_IF_ERROR(Ready());
  if (bytes == 0) return absl::InvalidArgumentError("an allocation of no bytes");
  if (bytes > world_.FreeBytes(state_)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Describe(info()), " has ", FormatBytes(world_.FreeBytes(state_)), " free of ",
                     FormatBytes(info().memory_bytes), ", not ", FormatBytes(bytes)));
  }
  const DeviceSpan span = memory_.NewSpan(bytes);
  const auto memory = std::make_shared<fake::Memory>();
  memory->name = absl::StrCat("GPU ", gpu_, "'s 0x", absl::Hex(span.address));
  memory->gpu = gpu_;
  memory->storage.resize(bytes, kPoison);
  memory->data = memory->storage.data();
  memory->bytes = bytes;
  state_.allocated_bytes += bytes;
  memory_.Add(span, {memory});
  return span;
}

absl::Status FakeDevice::Free(DeviceSpan span) {
  TALWEG_RETURN_IF_ERROR(Ready());
  const auto* const found = memory_.Find(span, false);
  if (found == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("0x", absl::Hex(span.address), " was not allocated here"));
  }
  fake::Memory& memory = **found;
  streams_.CheckUnused(memory, "frees");
  streams_.CheckEnds(absl::StrCat("frees ", memory.name));
  if (memory.mappings > 0) {
    world_.Violate(absl::StrCat("frees ", memory.name, ", which another process has mapped"));
  }
  memory.owner_gone = true;
  world_.ForgetIfUnused(memory);
  memory_.Remove(span);
  return absl::OkStatus();
}

absl::StatusOr<std::span<std::byte>> FakeDevice::AllocateHost(uint64_t bytes) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_RETURN_IF_ERROR(pinned_->CheckRoom(bytes));
  if (syscall(SYS_get_mempolicy, &world_.pinning_policy, nullptr, 0, nullptr, 0) != 0) {
    world_.pinning_policy = -1;
  }
  auto allocated = std::make_unique<std::byte[]>(bytes);
  const std::span<std::byte> span(allocated.get(), bytes);
  TALWEG_RETURN_IF_ERROR(pinned_->Pin(this, span, std::move(allocated)));
  return span;
}

absl::Status FakeDevice::FreeHost(std::span<std::byte> bytes) {
  TALWEG_RETURN_IF_ERROR(Ready());
  return pinned_->Unpin(this, bytes, true, streams_);
}

absl::Status FakeDevice::RegisterHost(std::span<std::byte> bytes) {
  TALWEG_RETURN_IF_ERROR(Ready());
  return pinned_->Pin(this, bytes, nullptr);
}

absl::Status FakeDevice::UnregisterHost(std::span<std::byte> bytes) {
  TALWEG_RETURN_IF_ERROR(Ready());
  return pinned_->Unpin(this, bytes, false, streams_);
}

absl::StatusOr<MemoryHandle> FakeDevice::Export(DeviceSpan span) {
  TALWEG_RETURN_IF_ERROR(Ready());
  const auto* const found = memory_.Find(span, false);
  if (found == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("0x", absl::Hex(span.address), " was not allocated here"));
  }
  for (const auto& [handle, memory] : world_.exported_memory) {
    if (memory.lock() == *found) return handle;
  }
  const MemoryHandle handle = {world_.NewHandle()};
  world_.exported_memory[handle] = *found;
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
  for (const auto& [address, entry] : memory_.map().entries()) {
    if (entry.value.memory == memory) {
      return absl::InvalidArgumentError(entry.value.imported
                                            ? "the handle's memory is mapped already"
                                            : "the handle's memory is this process's own");
    }
  }
  const DeviceSpan span = memory_.NewSpan(memory->bytes);
  ++memory->mappings;
  ++world_.mapping_count;
  memory_.Add(span, {memory, true});
  return span;
}

absl::Status FakeDevice::Unmap(DeviceSpan span) {
  TALWEG_RETURN_IF_ERROR(Ready());
  const auto* const found = memory_.Find(span, true);
  if (found == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("0x", absl::Hex(span.address), " is not mapped here"));
  }
  fake::Memory& memory = **found;
  streams_.CheckUnused(memory, "unmaps");
  streams_.CheckEnds(absl::StrCat("unmaps ", memory.name));
  --memory.mappings;
  --world_.mapping_count;
  world_.ForgetIfUnused(memory);
  memory_.Remove(span);
  return absl::OkStatus();
}

}  // namespace talweg::gpu::fake
