// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_DESCRIPTOR_H_
#define TALWEG_LIBS_BASE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace talweg {

// A file descriptor that is closed with its owner. Empty: -1. Needs libc only.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) Reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~Descriptor() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }

  void Reset(int fd = -1) {
    // EINTR leaves it closed on Linux: never close again.
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace talweg

#endif  // TALWEG_LIBS_BASE_DESCRIPTOR_H_
