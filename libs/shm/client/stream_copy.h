// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_STREAM_COPY_H_
#define TALWEG_LIBS_SHM_CLIENT_STREAM_COPY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace talweg::shm {

// A contribution of this size has left the writer's cache before others read it: then its lines
// need not be fetched to be written.
inline constexpr uint64_t kStreamInBytesMin = uint64_t{4} << 20;
// Likewise for a result that is taken.
inline constexpr uint64_t kStreamOutBytesMin = uint64_t{1} << 20;

// As memcpy, around the caches.
inline void StreamCopy(void* to, const void* from, size_t bytes) {
#if defined(__SSE2__)
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  const size_t head = (-reinterpret_cast<uintptr_t>(out)) % 64;
  if (bytes < head + 64) {
    std::memcpy(out, in, bytes);
    return;
  }
  std::memcpy(out, in, head);
  size_t at = head;
  for (; bytes - at >= 64; at += 64) {
    __m128i line[4];
    for (int i = 0; i < 4; ++i) {
      line[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + at) + i);
    }
    for (int i = 0; i < 4; ++i) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + at) + i, line[i]);
    }
  }
  _mm_sfence();  // Before whatever is published behind it.
  std::memcpy(out + at, in + at, bytes - at);
#else
  std::memcpy(to, from, bytes);
#endif
}

inline void CopyIn(void* to, const void* from, size_t bytes) {
  bytes >= kStreamInBytesMin ? StreamCopy(to, from, bytes)
                             : static_cast<void>(std::memcpy(to, from, bytes));
}

inline void CopyOut(void* to, const void* from, size_t bytes) {
  bytes >= kStreamOutBytesMin ? StreamCopy(to, from, bytes)
                              : static_cast<void>(std::memcpy(to, from, bytes));
}

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_STREAM_COPY_H_
