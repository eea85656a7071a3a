// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_CACHE_SHARE_H_
#define TALWEG_LIBS_SHM_CLIENT_CACHE_SHARE_H_

#include <algorithm>
#include <cstdint>

#include "libs/base/bytes.h"

namespace talweg::shm {

inline constexpr uint64_t kUnknownCacheBytes = 16 * kMiB;
// No processor has more last-level cache for each core.
inline constexpr uint64_t kCacheBytesMaxPerCpu = 64 * kMiB;

// How much of the last-level cache belongs to `cpu_count` CPUs. A processor may have several such
// caches, each for a few of its cores; the CPUs then have a share of them. The kernel says so in
// `directory` (/sys/devices/system/cpu/cpuN/cache) of one of the CPUs; sysconf(3) would add up a
// whole processor's caches. Returns 0 if the kernel does not say.
uint64_t LastCacheBytes(const char* directory, int cpu_count);

// How much of the CPUs' last-level cache (0: not known) the ranks that run there may count on. Half
// of it, because the trainer has buffers of its own. The share is bounded for each CPU: a virtual
// machine sees a whole processor's cache, most of which other machines' cores use.
inline constexpr uint64_t CacheShare(uint64_t last_cache_bytes, int cpu_count) {
  if (last_cache_bytes == 0) return kUnknownCacheBytes;
  return std::min(last_cache_bytes / 2,
                  kCacheBytesMaxPerCpu * static_cast<uint64_t>(std::max(cpu_count, 1)));
}

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_CACHE_SHARE_H_
