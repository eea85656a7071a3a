// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_ENCODING_CODEC_H_
#define TALWEG_LIBS_ENCODING_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "libs/base/encoding.h"
#include "libs/base/ids.h"

// The encodings of libs/base/encoding.h, over the bytes of one slice.
//
//   plain   the bytes
//   runs    the bytes if nothing is shorter, else records. A record is a header of 4 bytes, a count
//           of words and in its top bit whether they repeat, and one word that repeats, or as many
//           words as it counts. Words have 4 bytes. Up to 3 bytes that are left come last.
//   twice   the bytes, and the bytes inverted
//   bf16    each number rounded to bfloat16, to nearest, ties to even
//   int8    a scale for each block of 256 numbers, then each block: 8 bits for each number, which
//           times the scale are the number rounded up or down. Which of the two is drawn, with
//           such a chance that the mean is the number (QSGD, arXiv 1610.02132, with the greatest
//           magnitude as the norm). A block of zeros has the scale 0, and no bytes. A block whose
//           greatest magnitude is under 2^-100, or 2^127 and more, or not finite has the scale NaN,
//           and its bytes as they are. The bytes of the slice, if that is not shorter.
//   gaps    the bytes if nothing is shorter, else how many words are not 0, these words, their
//           places, and up to 3 bytes that are left. The places are a gap for each of these words:
//           how many words are 0 since the one before. A gap g < 192 is the byte g. One < 16320 is
//           the bytes 192 + (g - 192) / 256 and (g - 192) % 256. Others are the byte 255, and g in
//           4 bytes. If gaps take no less, the places are a bit for each word of the slice: bit
//           i % 8 of byte i / 8 says whether word i is not 0. The length says which of the two.
//   few     for up to 256 distinct words: the bytes if nothing is shorter, else one word that is
//           2^31 and how many they are, then for each number which of them it is, then these words
//           in the order in which they first appear. Which it is takes the least number of bits
//           that can say so, none for one word. Bits follow each other from the low bit of the
//           first byte on, and the last byte is filled with zeros. For more distinct words: int8.
//           Its first word is a scale, and so less than 2^31.
//
// All numbers are little-endian. Nothing takes nothing in each of them.
namespace talweg::encoding {

// What random numbers are drawn from: a new seed for each slice, round and giver, which the same
// slice has again if it is encoded again.
constexpr uint64_t SeedOf(Round round, uint64_t offset_bytes, uint32_t giver) {
  uint64_t mixed = (round.value() << 32 | giver) + 0x9e3779b97f4a7c15 * (offset_bytes / 4 + 1);
  mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
  return mixed ^ mixed >> 31;
}
// The giver of a sum, as members are numbered by their node ranks.
inline constexpr uint32_t kSumGiver = ~uint32_t{0};

// Encodes and decodes. The simulation has its own, for memory that does not hold numbers.
class Codec {
 public:
  virtual ~Codec() = default;
  // Returns how many bytes of `out` the encoded bytes take. `out` has room for TravelBytesMax bytes
  // and overlaps no plain byte. Equal seeds give equal bytes.
  virtual size_t Encode(Encoding encoding, uint64_t seed, std::span<const std::byte> plain,
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
