// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_RANDOM_H_
#define TALWEG_LIBS_BASE_RANDOM_H_

#include <cstdint>

#include "libs/base/check.h"
#include "libs/base/fingerprint.h"

namespace talweg {

// A seeded source of numbers (SplitMix64): the same seed gives the same numbers everywhere.
// One owner thread. Not for secrets.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    const uint64_t value = Mix64(state_);
    state_ += 0x9e3779b97f4a7c15u;
    return value;
  }

  // Uniform in [0, bound); the bias of the multiplication is below 2^-32 for bounds up to 2^32.
  uint64_t Below(uint64_t bound) {
    TALWEG_CHECK(bound > 0);
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * bound) >> 64);
  }

  bool OneIn(uint64_t n) { return Below(n) == 0; }

 private:
  uint64_t state_;
};

}  // namespace talweg

#endif  // TALWEG_LIBS_BASE_RANDOM_H_
