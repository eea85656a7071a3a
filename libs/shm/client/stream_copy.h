// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_STREAM_COPY_H_
#define TALWEG_LIBS_SHM_CLIENT_STREAM_COPY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace talweg::shm {

// As memcpy, around the caches. Visible to others before whatever is published behind it.
void StreamCopy(void* to, const void* from, size_t bytes);

inline void Copy(void* to, const void* from, size_t bytes, bool streaming) {
  streaming ? StreamCopy(to, from, bytes) : static_cast<void>(std::memcpy(to, from, bytes));
}

inline bool Overlap(const void* a, const void* b, size_t bytes) {
  const auto from = reinterpret_cast<uintptr_t>(a);
  const auto to = reinterpret_cast<uintptr_t>(b);
  return from < to + bytes && to < from + bytes;
}

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_STREAM_COPY_H_
