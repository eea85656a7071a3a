// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_KEYS_H_
#define TALWEG_LIBS_TRANSPORT_KEYS_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace talweg::transport {

// 64 bits that nobody can guess, from the system's generator.
uint64_t SystemRandom64();

// Makes keys of regions. A stale or invented key names no region. Keys are random, so that a key of
// an earlier process is not used again.
class KeySource {
 public:
  // 0: every key comes from the system's generator. Otherwise the seed alone decides the sequence.
  explicit KeySource(uint64_t seed) : seed_(seed) {}

  // Never 0. Only the lowest `bits` bits are used.
  uint64_t Next(int bits = 64);

 private:
  uint64_t Draw();

  const uint64_t seed_;
  uint64_t count_ = 0;
  // Drawn from the system in one call, which costs as much for one key as for all of these.
  std::array<uint64_t, 32> drawn_{};
  size_t drawn_left_ = 0;
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_KEYS_H_
