// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_FAKE_SHARED_MEMORY_H_
#define TALWEG_LIBS_GPU_FAKE_SHARED_MEMORY_H_

#include <absl/status/statusor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include "libs/gpu/address_map.h"
#include "libs/gpu/device.h"
#include "libs/gpu/fake/shared_files.h"

namespace talweg::gpu::fake {

// The memory of a shared fake GPU that one process has: files, each with a header before its bytes.
class SharedMemory {
 public:
  struct Mapped {
    std::shared_ptr<SharedFile> file;
    bool imported = false;
  };

  DeviceSpan Keep(std::shared_ptr<SharedFile> file, uint64_t bytes, bool imported) {
    const DeviceSpan span = {AddressOf(file->data()) + kHeaderBytes, bytes};
    map_.Insert(span.address, bytes, {std::move(file), imported});
    return span;
  }
  absl::Status Forget(DeviceSpan span, bool imported) {
    const auto* const entry = map_.Find(span.address);
    if (entry == nullptr || entry->bytes != span.bytes || entry->value.imported != imported) {
      return absl::InvalidArgumentError("not allocated, or mapped, here");
    }
    map_.Erase(span.address);
    return absl::OkStatus();
  }
  absl::StatusOr<MemoryHandle> HandleOf(DeviceSpan span) const {
    const auto* const entry = map_.Find(span.address);
    if (entry == nullptr || entry->value.imported) {
      return absl::InvalidArgumentError("not allocated here");
    }
    return MemoryHandle{entry->value.file->handle()};
  }
  bool Has(const SharedFile& file) const {
    return std::any_of(map_.entries().begin(), map_.entries().end(), [&](const auto& entry) {
      return entry.second.value.file->name() == file.name();
    });
  }
  absl::Status Check(DeviceSpan span) const {
    return map_.Holder(span.address, span.bytes, kDeviceMemory).status();
  }
  const AddressMap<Mapped>& map() const { return map_; }

 private:
  AddressMap<Mapped> map_;
};

// The host memory that a process has pinned, for all its devices.
using SharedPins = AddressMap<std::unique_ptr<std::byte[]>>;

// The memory that one device of the process has pinned, until the device is gone.
class DevicePins {
 public:
  explicit DevicePins(std::shared_ptr<SharedPins> all) : all_(std::move(all)) {}
  ~DevicePins() {
    for (const uint64_t address : mine_) all_->Erase(address);
  }
  DevicePins(const DevicePins&) = delete;
  DevicePins& operator=(const DevicePins&) = delete;

  std::span<std::byte> Allocate(uint64_t bytes) {
    auto memory = std::make_unique<std::byte[]>(bytes);
    const std::span<std::byte> span(memory.get(), bytes);
    Add(span, std::move(memory));
    return span;
  }
  absl::Status Register(std::span<std::byte> bytes) {
    if (bytes.empty() || all_->Overlaps(AddressOf(bytes.data()), bytes.size())) {
      return absl::InvalidArgumentError("host memory is pinned already, or empty");
    }
    Add(bytes, nullptr);
    return absl::OkStatus();
  }
  absl::Status Unpin(std::span<std::byte> bytes) {
    if (mine_.erase(AddressOf(bytes.data())) == 0) {
      return absl::InvalidArgumentError("not pinned by this device");
    }
    all_->Erase(AddressOf(bytes.data()));
    return absl::OkStatus();
  }
  // Returns OK if any device of the process has pinned the bytes.
  absl::Status Check(std::span<const std::byte> bytes) const {
    return all_->Holder(AddressOf(bytes.data()), bytes.size(), kPinnedMemory).status();
  }

 private:
  void Add(std::span<std::byte> bytes, std::unique_ptr<std::byte[]> memory) {
    mine_.insert(AddressOf(bytes.data()));
    all_->Insert(AddressOf(bytes.data()), bytes.size(), std::move(memory));
  }

  const std::shared_ptr<SharedPins> all_;
  std::set<uint64_t> mine_;
};

}  // namespace talweg::gpu::fake

#endif  // TALWEG_LIBS_GPU_FAKE_SHARED_MEMORY_H_
