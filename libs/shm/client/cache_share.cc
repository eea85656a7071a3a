// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/cache_share.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace talweg::shm {
namespace {

constexpr int kCachesMax = 16;  // The most caches that a CPU has.

// A file of one line.
struct Line {
  Line(const char* directory, int cache, const char* name) {
    char path[256];
    std::snprintf(path, sizeof(path), "%s/index%d/%s", directory, cache, name);
    const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    const ssize_t bytes = ::read(fd, text, sizeof(text) - 1);
    ::close(fd);
    if (bytes > 0) text[bytes] = '\0';
  }
  char text[1024] = "";
};

// Counts the CPUs that a list such as "0-7,64-71" names.
uint64_t CountOf(const char* list) {
  uint64_t count = 0;
  for (const char* at = list; *at >= '0' && *at <= '9';) {
    char* end = nullptr;
    const uint64_t first = std::strtoull(at, &end, 10);
    const uint64_t last = *end == '-' ? std::strtoull(end + 1, &end, 10) : first;
    if (last >= first) count += last - first + 1;
    at = *end == ',' ? end + 1 : end;
  }
  return count;
}

}  // namespace

uint64_t LastCacheBytes(const char* directory, int cpu_count) {
  uint64_t last_level = 0;
  uint64_t bytes = 0;
  for (int cache = 0; cache < kCachesMax; ++cache) {
    const uint64_t level = std::strtoull(Line(directory, cache, "level").text, nullptr, 10);
    if (level <= last_level) continue;
    char* unit = nullptr;
    const Line size(directory, cache, "size");
    const uint64_t number = std::strtoull(size.text, &unit, 10);
    const uint64_t scale = *unit == 'K' ? kKiB : *unit == 'M' ? kMiB : 1;
    const uint64_t sharers = CountOf(Line(directory, cache, "shared_cpu_list").text);
    if (number == 0 || sharers == 0) continue;
    last_level = level;
    bytes = number * scale / sharers * static_cast<uint64_t>(std::max(cpu_count, 1));
  }
  return bytes;
}

}  // namespace talweg::shm
