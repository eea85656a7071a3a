// SPDX-License-Identifier: Apache-2.0
#include "clients/c/talweg.h"
#include "libs/base/content_digest.h"

extern "C" uint64_t talweg_digest(const void* data, size_t bytes, uint64_t seed) {
  return talweg::ContentDigest({static_cast<const std::byte*>(data), bytes}, seed);
}
