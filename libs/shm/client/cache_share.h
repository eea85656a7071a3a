// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_CACHE_SHARE_H_
#define TALWEG_LIBS_SHM_CLIENT_CACHE_SHARE_H_

#include <algorithm>
#include <cstdint>

#include "libs/base/bytes.h"

namespace talweg::shm {

inline constexpr uint64_t kUnknownCacheBytes = 16 * kMiB;
// No processor has more of it for a core.
inline constexpr uint64_t kCacheBytesMaxPerCpu = 64 * kMiB;

// How much of the last cache belongs to `cpu_count` CPUs: their share of those that lie side by
// side in a processor, each for a few of its cores. As the kernel says it in `directory`
// (/sys/devices/system/cpu/cpuN/cache) of one of them, since sysconf(3) adds up a whole
// processor's. 0: it does not say.
uint64_t LastCacheBytes(const char* directory, int cpu_count);

// How much of the last cache that so many CPUs have (0: that is not known) the ranks may count on
// that run there. Half of it: beside their buffers there are the trainer's own. And of a cache that
// is large for these CPUs no more than they can have to themselves: a virtual machine is shown the
// whole of a processor's, most of which other machines' cores use.
inline constexpr uint64_t CacheShare(uint64_t last_cache_bytes, int cpu_count) {
  if (last_cache_bytes == 0) return kUnknownCacheBytes;
  return std::min(last_cache_bytes / 2,
                  kCacheBytesMaxPerCpu * static_cast<uint64_t>(std::max(cpu_count, 1)));
}

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_CACHE_SHARE_H_
