// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_ENCODING_CODEC_FIXTURE_H_
#define TALWEG_LIBS_ENCODING_CODEC_FIXTURE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "libs/base/check.h"
#include "libs/base/encoding.h"
#include "libs/encoding/codec.h"

// What tests of encodings share.
namespace talweg::encoding {

using Buffer = std::vector<std::byte>;

inline Buffer BytesOf(const std::vector<uint32_t>& words, size_t odd_bytes = 0) {
  Buffer bytes(words.size() * 4 + odd_bytes, std::byte{0x5a});
  if (!words.empty()) std::memcpy(bytes.data(), words.data(), words.size() * 4);
  return bytes;
}

// Encodes into memory in which something stands already.
inline Buffer Encoded(Encoding encoding, const Buffer& plain, uint64_t seed = 0,
                      std::byte before = std::byte{0xee}) {
  Buffer out(TravelBytesMax(encoding, plain.size()), before);
  out.resize(Codecs().Encode(encoding, seed, plain, out));
  return out;
}

// Decodes into `plain`, which has then `bytes` bytes. Ends the test if a byte beside them is
// written. What is encoded ends where memory does.
inline bool Decodes(Encoding encoding, const Buffer& encoded, size_t bytes, Buffer& plain) {
  constexpr size_t kGuardBytes = 64;
  constexpr std::byte kGuard{0x77};
  const Buffer tight(encoded.begin(), encoded.end());
  Buffer guarded(bytes + 2 * kGuardBytes, kGuard);
  const bool decodes =
      Codecs().Decode(encoding, tight, std::span(guarded).subspan(kGuardBytes, bytes));
  plain.assign(guarded.begin() + kGuardBytes, guarded.end() - kGuardBytes);
  guarded.erase(guarded.begin() + kGuardBytes, guarded.end() - kGuardBytes);
  TALWEG_CHECK(guarded == Buffer(2 * kGuardBytes, kGuard));
  return decodes;
}

}  // namespace talweg::encoding

#endif  // TALWEG_LIBS_ENCODING_CODEC_FIXTURE_H_
