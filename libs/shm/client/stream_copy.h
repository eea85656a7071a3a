// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_STREAM_COPY_H_
#define TALWEG_LIBS_SHM_CLIENT_STREAM_COPY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace talweg::shm {

// Copies as memcpy does, but around the caches. The bytes become visible before anything that is
// published later.
void StreamCopy(void* to, const void* from, size_t bytes);

inline void Copy(void* to, const void* from, size_t bytes, bool streaming) {
  streaming ? StreamCopy(to, from, bytes) : static_cast<void>(std::memcpy(to, from, bytes));
}

// Copies to both places, but reads once.
inline void CopyTwice(std::byte* to, std::byte* also, const std::byte* from, size_t bytes,
                      bool streaming) {
  constexpr size_t kPieceBytes = 16 * 1024;  // Stays in the first-level cache for the second copy.
  for (size_t at = 0; at < bytes; at += kPieceBytes) {
    const size_t piece = bytes - at < kPieceBytes ? bytes - at : kPieceBytes;
    Copy(to + at, from + at, piece, streaming);
    Copy(also + at, from + at, piece, streaming);
  }
}

// Memory without bytes overlaps nothing, wherever it is.
inline bool Overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const auto a_begin = reinterpret_cast<uintptr_t>(a);
  const auto b_begin = reinterpret_cast<uintptr_t>(b);
  return a_bytes != 0 && b_bytes != 0 && a_begin < b_begin + b_bytes && b_begin < a_begin + a_bytes;
}

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_STREAM_COPY_H_
