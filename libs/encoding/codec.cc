// SPDX-License-Identifier: Apache-2.0
#include "libs/encoding/codec.h"

#include <algorithm>
#include <cstdint>

#include "libs/base/check.h"
#include "libs/encoding/copy.h"
#include "libs/encoding/few.h"
#include "libs/encoding/gaps.h"
#include "libs/encoding/rounding.h"
#include "libs/encoding/runs.h"

namespace talweg::encoding {
namespace {

using Bytes = std::span<const std::byte>;
using Room = std::span<std::byte>;

// Slices have up to 1 GiB, and frames say how many bytes travel in 32 bits.
static_assert(std::all_of(kEncodings.begin(), kEncodings.end(), [](const EncodingRow& row) {
  return row.line_bytes_max < 4 * kCacheLineBytes;
}));

size_t EncodeTwice(Bytes plain, Room out) {
  CopyTo(plain, out);
  std::transform(plain.begin(), plain.end(), out.begin() + static_cast<ptrdiff_t>(plain.size()),
                 [](std::byte byte) { return ~byte; });
  return 2 * plain.size();
}

bool DecodeTwice(Bytes encoded, Room plain) {
  if (encoded.size() != 2 * plain.size()) return false;
  std::byte differs{0};
  for (size_t i = 0; i < plain.size(); ++i) {
    plain[i] = encoded[i];
    differs |= plain[i] ^ ~encoded[plain.size() + i];
  }
  return differs == std::byte{0};
}

class ByteCodec final : public Codec {
 public:
  size_t Encode(Encoding encoding, uint64_t seed, Bytes plain, Room out) const override {
    TALWEG_CHECK(out.size() >= TravelBytesMax(encoding, plain.size()));
    switch (encoding) {
      case Encoding::kRuns: return EncodeRuns(plain, out);
      case Encoding::kTwice: return EncodeTwice(plain, out);
      case Encoding::kBf16: return EncodeBf16(plain, out);
      case Encoding::kInt8: return EncodeInt8(plain, seed, out);
      case Encoding::kGaps: return EncodeGaps(plain, out);
      case Encoding::kFew: return EncodeFew(plain, seed, out);
      case Encoding::kPlain: break;
    }
    return CopyTo(plain, out);
  }

  bool Decode(Encoding encoding, Bytes encoded, Room plain) const override {
    switch (encoding) {
      case Encoding::kRuns: return DecodeRuns(encoded, plain);
      case Encoding::kTwice: return DecodeTwice(encoded, plain);
      case Encoding::kBf16: return DecodeBf16(encoded, plain);
      case Encoding::kInt8: return DecodeInt8(encoded, plain);
      case Encoding::kGaps: return DecodeGaps(encoded, plain);
      case Encoding::kFew: return DecodeFew(encoded, plain);
      case Encoding::kPlain: break;
    }
    return CopiedWhole(encoded, plain);
  }
};

}  // namespace

const Codec& Codecs() {
  static const ByteCodec codec;
  return codec;
}

}  // namespace talweg::encoding
