// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_ENCODING_CODEC_FIXTURE_H_
#define TALWEG_LIBS_ENCODING_CODEC_FIXTURE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <catch2/catch.hpp>

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

// Memory with bytes on both sides that nobody may write.
class Guarded {
 public:
  Guarded(size_t bytes, std::byte fill) : bytes_(bytes), memory_(bytes + 2 * kGuardBytes, kGuard) {
    std::fill_n(inside().begin(), bytes, fill);
  }
  ~Guarded() {
    memory_.erase(memory_.begin() + kGuardBytes, memory_.end() - kGuardBytes);
    TALWEG_CHECK(memory_ == Buffer(2 * kGuardBytes, kGuard));
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::span<std::byte> inside() { return std::span(memory_).subspan(kGuardBytes, bytes_); }
  Buffer First(size_t bytes) const {
    const auto begin = memory_.begin() + kGuardBytes;
    return {begin, begin + static_cast<ptrdiff_t>(bytes)};
  }

 private:
  static constexpr ptrdiff_t kGuardBytes = 64;
  static constexpr std::byte kGuard{0x77};

  const size_t bytes_;
  Buffer memory_;
};

// Encodes into memory that is filled with `before`. Ends the test if a byte beside it is written.
inline Buffer Encoded(Encoding encoding, const Buffer& plain, uint64_t seed = 0,
                      std::byte before = std::byte{0xee}) {
  Guarded out(TravelBytesMax(encoding, plain.size()), before);
  return out.First(Codecs().Encode(encoding, seed, plain, out.inside()));
}

// Decodes into `plain`, which has then `bytes` bytes. Ends the test if a byte beside them is
// written.
inline bool Decodes(Encoding encoding, const Buffer& encoded, size_t bytes, Buffer& plain) {
  Guarded memory(bytes, std::byte{0x99});
  const bool decodes = Codecs().Decode(encoding, encoded, memory.inside());
  plain = memory.First(bytes);
  return decodes;
}

// For encodings that never take more than the bytes themselves, and give them back.
inline void CheckComesBack(Encoding encoding, const Buffer& plain) {
  const Buffer encoded = Encoded(encoding, plain, 1);
  CAPTURE(EncodingName(encoding), plain.size(), encoded.size());
  REQUIRE(encoded.size() <= plain.size());
  Buffer back;
  REQUIRE(Decodes(encoding, encoded, plain.size(), back));
  REQUIRE(back == plain);
}

}  // namespace talweg::encoding

#endif  // TALWEG_LIBS_ENCODING_CODEC_FIXTURE_H_
