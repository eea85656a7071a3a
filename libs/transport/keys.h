// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_KEYS_H_
#define TALWEG_LIBS_TRANSPORT_KEYS_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace talweg::transport {

// 64 bits that nobody can guess, from the system's generator.
uint64_t SystemRandom64();

// Keys of regions. A peer that writes with a stale or invented key meets no region: keys are not
// counted up but drawn, so that yesterday's is not today's.
class KeySource {
 public:
  // 0: every key from the system's generator. Else a sequence that the seed alone decides.
  explicit KeySource(uint64_t seed) : seed_(seed) {}

  // Never 0. Only the lowest `bits` bits are used.
  uint64_t Next(int bits = 64);

 private:
  uint64_t Draw();

  const uint64_t seed_;
  uint64_t count_ = 0;
  // From the system, of which each call costs as much for one as for all of these.
  std::array<uint64_t, 32> drawn_{};
  size_t drawn_left_ = 0;
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_KEYS_H_
