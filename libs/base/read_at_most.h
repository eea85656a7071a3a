// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_READ_AT_MOST_H_
#define TALWEG_LIBS_BASE_READ_AT_MOST_H_

#include <errno.h>
#include <unistd.h>

#include <cstddef>
#include <string>

namespace talweg {

// Reads a file, or the rest of it, but no more than `bytes_max` bytes. Returns false if that fails;
// errno says why.
//
// Needs libc only.
inline bool ReadAtMost(int fd, size_t bytes_max, std::string& text) {
  text.resize(bytes_max);
  size_t bytes = 0;
  while (bytes < bytes_max) {
    const ssize_t count = ::read(fd, text.data() + bytes, bytes_max - bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    if (count == 0) break;
    bytes += static_cast<size_t>(count);
  }
  text.resize(bytes);
  return true;
}

}  // namespace talweg

#endif  // TALWEG_LIBS_BASE_READ_AT_MOST_H_
