// SPDX-License-Identifier: Apache-2.0
#include "libs/base/content_digest.h"

#include <array>
#include <bit>
#include <cstring>

#include "libs/base/fingerprint.h"

namespace talweg {
namespace {

// A step takes a multiplication's latency, and a core begins one in each cycle: so many lanes keep
// it busy.
constexpr size_t kLanes = 8;
constexpr size_t kBlockBytes = kLanes * sizeof(uint64_t);
constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;  // The golden ratio's bits, as Mix64 has them.
constexpr int kRotation = 29;

using Lanes = std::array<uint64_t, kLanes>;

void Step(Lanes& lanes, const std::byte* block) {
  Lanes words;
  std::memcpy(words.data(), block, kBlockBytes);
  for (size_t lane = 0; lane < kLanes; ++lane) {
    lanes[lane] = std::rotl((lanes[lane] ^ words[lane]) * kOdd, kRotation);
  }
}

}  // namespace

static_assert(std::endian::native == std::endian::little, "digests are of little-endian words");

uint64_t ContentDigest(std::span<const std::byte> content, uint64_t seed) {
  Lanes lanes;
  for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = Fingerprint64(seed, lane);
  size_t position = 0;
  for (; content.size() - position >= kBlockBytes; position += kBlockBytes) {
    Step(lanes, content.data() + position);
  }
  if (position < content.size()) {
    std::array<std::byte, kBlockBytes> last{};
    std::memcpy(last.data(), content.data() + position, content.size() - position);
    Step(lanes, last.data());
  }
  uint64_t digest = Fingerprint64(seed, content.size());
  for (const uint64_t lane : lanes) digest = Mix64(digest ^ lane);
  return digest;
}

}  // namespace talweg
