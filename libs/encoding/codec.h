// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_ENCODING_CODEC_H_
#define TALWEG_LIBS_ENCODING_CODEC_H_

#include <cstddef>
#include <span>

#include "libs/base/encoding.h"

// The encodings of libs/base/encoding.h, over the bytes of one slice.
//
//   plain   the bytes
//   runs    the bytes if nothing is shorter, else records. A record is a header of 4 bytes, a count
//           of words and in its top bit whether they repeat, and one word that repeats, or as many
//           words as it counts. Words have 4 bytes. Up to 3 bytes that are left come last.
//   twice   the bytes, and the bytes inverted
//
// All numbers are little-endian. Nothing takes nothing in each of them.
namespace talweg::encoding {

// Encodes and decodes. The simulation has its own, for memory that does not hold numbers.
class Codec {
 public:
  virtual ~Codec() = default;
  // Returns how many bytes of `out` the encoded bytes take. `out` has room for TravelBytesMax bytes
  // and overlaps no plain byte.
  virtual size_t Encode(Encoding encoding, std::span<const std::byte> plain,
                        std::span<std::byte> out) const = 0;
  // Fills `plain`. Returns false if `encoded` is no encoding of so many bytes; then `plain` means
  // nothing. `encoded` may change meanwhile, as memory does that a peer writes.
  [[nodiscard]] virtual bool Decode(Encoding encoding, std::span<const std::byte> encoded,
                                    std::span<std::byte> plain) const = 0;
};

// The codec of the table above.
const Codec& Codecs();

}  // namespace talweg::encoding

#endif  // TALWEG_LIBS_ENCODING_CODEC_H_
