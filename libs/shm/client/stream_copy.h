// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_STREAM_COPY_H_
#define TALWEG_LIBS_SHM_CLIENT_STREAM_COPY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "libs/base/bytes.h"

namespace talweg::shm {

// A contribution of this size has left the writer's cache before others read it: then its lines
// need not be fetched to be written.
inline constexpr uint64_t kStreamInBytesMin = 4 * kMiB;
// Likewise for a result that is taken.
inline constexpr uint64_t kStreamOutBytesMin = kMiB;

// As memcpy, around the caches. Visible to others before whatever is published behind it.
void StreamCopy(void* to, const void* from, size_t bytes);

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
