// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_MAPPING_H_
#define TALWEG_LIBS_SHM_MAPPING_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "libs/base/bytes.h"

namespace talweg::shm {

// Owns a mapping of a segment; unmaps it. Not thread-safe. Needs libc only.
class Mapping {
 public:
  enum class Access { kRead, kReadWrite };

  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      Reset();
      data_ = std::exchange(other.data_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }
  ~Mapping() { Reset(); }

  // Maps the first `bytes` of `fd`, shared, so that huge pages of the file lie at huge page
  // boundaries here. Not valid() if the kernel refuses; errno says why.
  static Mapping Map(int fd, size_t bytes, Access access) {
    const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
    Mapping room = bytes >= kHugePageBytes ? Reserve(bytes + kHugePageBytes) : Mapping();
    const auto from = reinterpret_cast<uintptr_t>(room.data_);
    void* const place = reinterpret_cast<void*>(RoundUp(from, kHugePageBytes));
    void* data = ::mmap(room.valid() ? place : nullptr, bytes, protection,
                        room.valid() ? MAP_SHARED | MAP_FIXED : MAP_SHARED, fd, 0);
    Mapping mapping;
    if (data == MAP_FAILED) return mapping;
    mapping.data_ = static_cast<std::byte*>(data);
    mapping.bytes_ = bytes;
    if (room.valid()) room.ResetAround(mapping);
    return mapping;
  }

  // Takes over a mapping that the caller has made.
  static Mapping Adopt(void* data, size_t bytes) {
    Mapping mapping;
    mapping.data_ = static_cast<std::byte*>(data);
    mapping.bytes_ = bytes;
    return mapping;
  }

  // Gives up ownership; the mapping stays.
  void Release() {
    data_ = nullptr;
    bytes_ = 0;
  }

  // Maps zeroed memory for this process alone.
  static Mapping MapPrivate(size_t bytes) {
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    Mapping mapping;
    if (data != MAP_FAILED) {
      mapping.data_ = static_cast<std::byte*>(data);
      mapping.bytes_ = bytes;
      ::madvise(data, bytes, MADV_HUGEPAGE);  // If the kernel refuses, this only costs time.
    }
    return mapping;
  }

  bool valid() const { return data_ != nullptr; }
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void Reset() {
    if (data_ != nullptr) ::munmap(std::exchange(data_, nullptr), std::exchange(bytes_, 0));
  }

  static constexpr size_t kHugePageBytes = size_t{2} << 20;

 private:
  static constexpr size_t kPageBytes = 4096;

  static Mapping Reserve(size_t bytes) {
    void* data =
        ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    Mapping mapping;
    if (data != MAP_FAILED) {
      mapping.data_ = static_cast<std::byte*>(data);
      mapping.bytes_ = bytes;
    }
    return mapping;
  }
  // Unmaps what is left of this around `inner`, which was mapped over a part of it.
  void ResetAround(const Mapping& inner) {
    std::byte* const end = data_ + bytes_;
    std::byte* const rest = inner.data_ + RoundUp(inner.bytes_, kPageBytes);
    if (data_ < inner.data_) ::munmap(data_, static_cast<size_t>(inner.data_ - data_));
    if (rest < end) ::munmap(rest, static_cast<size_t>(end - rest));
    Release();
  }

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_MAPPING_H_
