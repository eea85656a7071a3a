// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_ADDRESS_MAP_H_
#define TALWEG_LIBS_GPU_ADDRESS_MAP_H_

#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>

#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

#include "libs/gpu/device.h"

namespace talweg::gpu {

// Returns the address of host memory for an AddressMap.
inline uint64_t AddressOf(const void* data) { return reinterpret_cast<uint64_t>(data); }

// Pieces of an address space, each with a value. Work at an address that lies in no piece is
// refused before a GPU sees it, where it would end the context for every rank.
template <class Value>
class AddressMap {
 public:
  struct Entry {
    uint64_t bytes;
    Value value;
  };

  // The new piece must not overlap another one.
  void Insert(uint64_t address, uint64_t bytes, Value value) {
    entries_.emplace(address, Entry{bytes, std::move(value)});
  }
  // Returns the entry that begins at `address`, or null.
  const Entry* Find(uint64_t address) const {
    const auto at = entries_.find(address);
    return at == entries_.end() ? nullptr : &at->second;
  }
  void Erase(uint64_t address) { entries_.erase(address); }
  bool Overlaps(uint64_t address, uint64_t bytes) const {
    const auto next = entries_.lower_bound(address);
    if (next != entries_.end() && next->first - address < bytes) return true;
    if (next == entries_.begin()) return false;
    const auto before = std::prev(next);
    return address - before->first < before->second.bytes;
  }

  // Returns the entry that holds all of these bytes, and its address.
  absl::StatusOr<std::pair<uint64_t, const Entry*>> Holder(uint64_t address, uint64_t bytes,
                                                           const char* what) const {
    auto at = entries_.upper_bound(address);
    if (at != entries_.begin()) {
      --at;
      const uint64_t offset = address - at->first;
      if (offset <= at->second.bytes && bytes <= at->second.bytes - offset) {
        return std::pair(at->first, &at->second);
      }
    }
    return absl::InvalidArgumentError(
        absl::StrCat(bytes, " bytes at 0x", absl::Hex(address), " are not ", what));
  }

  const std::map<uint64_t, Entry>& entries() const { return entries_; }

 private:
  std::map<uint64_t, Entry> entries_;
};

// INVALID_ARGUMENT unless a copy's target is as long as its source.
inline absl::Status CheckCopy(uint64_t target_bytes, uint64_t source_bytes) {
  if (target_bytes == source_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a copy of ", source_bytes, " bytes to ", target_bytes));
}

inline constexpr char kDeviceMemory[] =
    "memory that was allocated or mapped on this GPU by this process";
inline constexpr char kPinnedMemory[] =
    "pinned host memory of this process (AllocateHost, RegisterHost)";

// Returns the allocation that holds these bytes, and its address. INVALID_ARGUMENT unless a NIC may
// use them: whole pages, not imported from another process.
template <class Mapped>
absl::StatusOr<std::pair<uint64_t, const typename AddressMap<Mapped>::Entry*>> HolderForNic(
    const AddressMap<Mapped>& memory, DeviceSpan span) {
  if (span.bytes == 0 || span.address % kNicPageBytes != 0 || span.bytes % kNicPageBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(span.bytes, " bytes at 0x", absl::Hex(span.address),
                     " are not whole pages of ", kNicPageBytes, " bytes"));
  }
  auto holder = memory.Holder(span.address, span.bytes, kDeviceMemory);
  if (holder.ok() && holder->second->value.imported) {
    return absl::InvalidArgumentError("a NIC reaches what was allocated here, not what was mapped");
  }
  return holder;
}

}  // namespace talweg::gpu

#endif  // TALWEG_LIBS_GPU_ADDRESS_MAP_H_
