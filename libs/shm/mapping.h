// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_MAPPING_H_
#define TALWEG_LIBS_SHM_MAPPING_H_

#include <sys/mman.h>

#include <cstddef>
#include <utility>

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

  // Maps the first `bytes` of `fd`, shared. Not valid() when the kernel refuses; errno says why.
  static Mapping Map(int fd, size_t bytes, Access access) {
    const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
    void* data = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
    Mapping mapping;
    if (data != MAP_FAILED) {
      mapping.data_ = static_cast<std::byte*>(data);
      mapping.bytes_ = bytes;
    }
    return mapping;
  }

  // Memory of this process alone, zeroed.
  static Mapping MapPrivate(size_t bytes) {
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    Mapping mapping;
    if (data != MAP_FAILED) {
      mapping.data_ = static_cast<std::byte*>(data);
      mapping.bytes_ = bytes;
    }
    return mapping;
  }

  bool valid() const { return data_ != nullptr; }
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void Reset() {
    if (data_ != nullptr) ::munmap(std::exchange(data_, nullptr), std::exchange(bytes_, 0));
  }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_MAPPING_H_
