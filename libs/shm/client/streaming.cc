// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/streaming.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "libs/shm/client/cache_share.h"
#include "libs/shm/client/cpus.h"

namespace talweg::shm {
namespace {

// Counts the CPUs of all `ranks`. Each rank may have its own, out of those of the process that
// started it.
uint64_t DefaultCacheBytes(uint32_t ranks) {
  const Cpus own(0);
  const auto all = static_cast<uint64_t>(std::max(own.count, Cpus(::getppid()).count));
  const auto count = static_cast<int>(std::min(uint64_t{ranks} * own.count, all));
  char directory[64];
  std::snprintf(directory, sizeof(directory), "/sys/devices/system/cpu/cpu%d/cache", own.first);
  return CacheShare(LastCacheBytes(directory, count), count);
}

}  // namespace

void Streaming::Begin(uint64_t cache_bytes, uint32_t ranks) {
  cache_bytes_ = cache_bytes != 0 ? cache_bytes : DefaultCacheBytes(ranks);
  ranks_ = ranks;
}

}  // namespace talweg::shm
