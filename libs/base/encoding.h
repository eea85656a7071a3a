// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_ENCODING_H_
#define TALWEG_LIBS_BASE_ENCODING_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "libs/base/bytes.h"

// How a slice's bytes travel between agents and aggregators. libs/encoding encodes and decodes;
// everybody else asks here how much room that takes.
namespace talweg {

// Values are part of the wire, of shared memory and of the C ABI.
enum class Encoding : uint8_t {
  kPlain = 0,  // As they lie in memory.
  kRuns = 1,   // Words that repeat are sent once: for tensors with long runs of equal numbers.
  kTwice = 2,  // Twice, the second time inverted: damage is noticed.
  kBf16 = 3,   // Rounded to bfloat16: half the bytes.
  kInt8 = 4,   // Rounded at random to 8 bits, in blocks with a scale each: a quarter of the bytes.
  kGaps = 5,   // Words that are not 0, and where they are: for tensors that are mostly zeros.
  kFew = 6,    // Up to 256 distinct words once, and which of them each is. More: as int8.
};

struct EncodingRow {
  std::string_view name;
  // The most bytes that one cache line of a slice takes. A whole number of cache lines, so that
  // what is encoded lies as aligned as what is not. At least one, because results that are finished
  // for others travel plain, through the same memory (docs/protocol.md, section 6).
  uint32_t line_bytes_max = 0;
  // Whether numbers come out rounded. Such an encoding is for sums and averages of f32.
  bool rounds = false;
};

inline constexpr std::array<EncodingRow, 7> kEncodings = {{
    {"plain", kCacheLineBytes},
    {"runs", kCacheLineBytes},
    {"twice", 2 * kCacheLineBytes},
    {"bf16", kCacheLineBytes, /*rounds=*/true},
    {"int8", kCacheLineBytes, /*rounds=*/true},
    {"gaps", kCacheLineBytes},
    {"few", kCacheLineBytes, /*rounds=*/true},
}};
static_assert(std::all_of(kEncodings.begin(), kEncodings.end(), [](const EncodingRow& row) {
  return row.line_bytes_max >= kCacheLineBytes && row.line_bytes_max % kCacheLineBytes == 0;
}));

constexpr bool IsValid(Encoding encoding) {
  return static_cast<size_t>(encoding) < kEncodings.size();
}
constexpr std::string_view EncodingName(Encoding encoding) {
  return IsValid(encoding) ? kEncodings[static_cast<size_t>(encoding)].name : "unknown";
}
constexpr bool Rounds(Encoding encoding) {
  return IsValid(encoding) && kEncodings[static_cast<size_t>(encoding)].rounds;
}

// The most bytes that `bytes` bytes of a slice take when they travel. For whole cache lines the sum
// of two is that of both together, so what is encoded has a place however a tensor is cut.
constexpr uint64_t TravelBytesMax(Encoding encoding, uint64_t bytes) {
  if (encoding == Encoding::kPlain) return bytes;
  const uint64_t lines = (bytes + kCacheLineBytes - 1) / kCacheLineBytes;
  return lines * kEncodings[static_cast<size_t>(encoding)].line_bytes_max;
}

}  // namespace talweg

#endif  // TALWEG_LIBS_BASE_ENCODING_H_
