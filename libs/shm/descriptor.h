// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DESCRIPTOR_H_
#define TALWEG_LIBS_SHM_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace talweg::shm {

// Owns a file descriptor; closes it. Not thread-safe. Needs libc only.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Descriptor() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset() {
    // EINTR from close() leaves the descriptor closed on Linux: never close again.
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DESCRIPTOR_H_
