// SPDX-License-Identifier: Apache-2.0

// Any bytes are an encoding of some data, or are refused. What was decoded can be encoded, and is
// then decoded to the same, or to what the encoding rounds it to. The input's first byte says which
// encoding, its second how long the data is for each byte that is encoded.

#include "libs/encoding/codec.h"

#include <cstdint>
#include <cstdlib>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace talweg;
  if (size < 2) return 0;
  const auto encoding = static_cast<Encoding>(data[0] % kEncodings.size());
  const std::span<const std::byte> encoded(reinterpret_cast<const std::byte*>(data + 2), size - 2);
  std::vector<std::byte> plain(encoded.size() * (1 + data[1]) / 8);
  if (!encoding::Codecs().Decode(encoding, encoded, plain)) return 0;
  std::vector<std::byte> again(TravelBytesMax(encoding, plain.size()));
  again.resize(encoding::Codecs().Encode(encoding, size, plain, again));
  std::vector<std::byte> back(plain.size());
  if (!encoding::Codecs().Decode(encoding, again, back)) std::abort();
  if (!Rounds(encoding) && back != plain) std::abort();
  return 0;
}
