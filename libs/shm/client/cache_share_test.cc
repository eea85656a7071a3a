// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/cache_share.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <catch2/catch.hpp>

#include "libs/base/test_directory.h"

namespace talweg::shm {
namespace {

TEST_CASE("A rank counts on half of the last cache, and on none that belongs to others") {
  CHECK(CacheShare(36 * kMiB, 2) == 18 * kMiB);
  CHECK(CacheShare(256 * kMiB, 64) == 128 * kMiB);
  CHECK(CacheShare(480 * kMiB, 2) == 128 * kMiB);
  CHECK(CacheShare(480 * kMiB, 1) == 64 * kMiB);
  // The system may not know the cache or the CPUs.
  CHECK(CacheShare(0, 4) == kUnknownCacheBytes);
  CHECK(CacheShare(480 * kMiB, 0) == 64 * kMiB);
}

// A directory like the kernel's for the caches of a CPU.
class CacheDirectory {
 public:
  void Add(const std::string& level, const std::string& size, const std::string& cpus) {
    const std::filesystem::path cache = directory_.Path("index" + std::to_string(count_++));
    std::filesystem::create_directory(cache);
    std::ofstream(cache / "level") << level << '\n';
    std::ofstream(cache / "size") << size << '\n';
    std::ofstream(cache / "shared_cpu_list") << cpus << '\n';
  }
  uint64_t LastBytes(int cpu_count) const {
    return LastCacheBytes(directory_.path().c_str(), cpu_count);
  }

 private:
  TestDirectory directory_;
  int count_ = 0;
};

TEST_CASE("CPUs share the last cache equally") {
  CacheDirectory caches;
  CHECK(caches.LastBytes(2) == 0);  // Nothing is known.
  caches.Add("1", "32K", "0,64");
  caches.Add("1", "32K", "0,64");
  caches.Add("2", "1024K", "0,64");
  CHECK(caches.LastBytes(2) == kMiB);
  // One cache serves eight cores of two threads each. There are others like it.
  caches.Add("3", "32768K", "0-7,64-71");
  CHECK(caches.LastBytes(16) == 32 * kMiB);
  CHECK(caches.LastBytes(4) == 8 * kMiB);
  CHECK(caches.LastBytes(128) == 256 * kMiB);
  CHECK(caches.LastBytes(0) == 2 * kMiB);
  // A cache without usable values counts as absent.
  caches.Add("4", "", "0");
  caches.Add("5", "1M", "all");
  caches.Add("none", "1M", "0");
  CHECK(caches.LastBytes(16) == 32 * kMiB);
  caches.Add("6", "48M", "0-15\n");
  CHECK(caches.LastBytes(16) == 48 * kMiB);
}

TEST_CASE("The kernel reports a cache of this machine, or none") {
  const uint64_t bytes = LastCacheBytes("/sys/devices/system/cpu/cpu0/cache", 1);
  CHECK((bytes == 0 || (bytes >= 16 * kKiB && bytes <= 4 * kGiB)));
}

}  // namespace
}  // namespace talweg::shm
