// SPDX-License-Identifier: Apache-2.0
#include <xxhash.h>

#include "clients/c/talweg.h"

extern "C" uint64_t talweg_digest(const void* data, size_t bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}
