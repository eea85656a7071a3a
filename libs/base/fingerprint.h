// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_FINGERPRINT_H_
#define TALWEG_LIBS_BASE_FINGERPRINT_H_

#include <cstdint>
#include <string_view>

namespace talweg {

// Mixes 64 bits so that every input bit moves about half of the output bits (the finaliser of
// SplitMix64: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// A 64-bit fingerprint, the same in every process and version. It does not resist adversarial
// input, so its users also compare the names (see docs/protocol.md, "Tensors").
constexpr uint64_t Fingerprint64(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u ^ text.size();
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return Mix64(hash);
}

constexpr uint64_t Fingerprint64(uint64_t a, uint64_t b) { return Mix64(Mix64(a) ^ b); }

}  // namespace talweg

#endif  // TALWEG_LIBS_BASE_FINGERPRINT_H_
