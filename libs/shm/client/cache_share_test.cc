// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/cache_share.h"

#include <catch2/catch.hpp>

namespace talweg::shm {
namespace {

TEST_CASE("Ranks count on half of the last cache, and on none that is others'") {
  CHECK(CacheShare(36 * kMiB, 2) == 18 * kMiB);
  CHECK(CacheShare(256 * kMiB, 64) == 128 * kMiB);
  CHECK(CacheShare(480 * kMiB, 2) == 128 * kMiB);
  CHECK(CacheShare(480 * kMiB, 1) == 64 * kMiB);
  // What the system does not say.
  CHECK(CacheShare(0, 4) == kUnknownCacheBytes);
  CHECK(CacheShare(480 * kMiB, 0) == 64 * kMiB);
}

}  // namespace
}  // namespace talweg::shm
