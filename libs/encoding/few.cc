// SPDX-License-Identifier: Apache-2.0
#include "libs/encoding/few.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "libs/encoding/block_table.h"
#include "libs/encoding/copy.h"
#include "libs/encoding/rounding.h"
#include "libs/encoding/tables.h"

namespace talweg::encoding {
namespace {

using internal::BlockTable;
using internal::kBlockFloats;
using Bytes = std::span<const std::byte>;
using Room = std::span<std::byte>;

constexpr size_t kWordBytes = sizeof(uint32_t);
constexpr size_t kTableMax = 256;
// Set in the first word where a table follows. It is the sign of int8's first scale, which is
// positive.
constexpr uint32_t kHasTable = uint32_t{1} << 31;

// The distinct words of a slice, in the order in which they first appear.
class DistinctWords {
 public:
  // Writes the place of each word among them to `places`. Returns false if there are too many.
  bool Place(Bytes words, Room places, const BlockTable& table) {
    while (!places.empty()) {
      const size_t now = std::min(places.size(), kBlockFloats);
      // Words are looked for in the hash table once, then compared with those that there are.
      const bool may_match = now == kBlockFloats && count_ > 0 && count_ <= kMatchedMax;
      if (!(may_match && table.match(words.data(), words_.data(), count_, places.data())) &&
          !Look(words, places.first(now))) {
        return false;
      }
      words = words.subspan(now * kWordBytes);
      places = places.subspan(now);
    }
    return true;
  }

  Bytes bytes() const { return std::as_bytes(std::span(words_).first(count_)); }
  size_t count() const { return count_; }

 private:
  // With more words it takes longer to compare with all of them than to hash.
  static constexpr size_t kMatchedMax = 8;
  // Eight times as many as there are words: few of them meet.
  static constexpr int kEntryBits = 11;
  static constexpr size_t kEntries = size_t{1} << kEntryBits;
  // An entry is a word, a bit that says that there is one, and its place.
  static constexpr uint64_t kTaken = uint64_t{1} << 32;
  static constexpr uint64_t kWordMask = kTaken | 0xffffffff;
  static constexpr int kPlaceShift = 33;

  // Floats may differ in high bits alone.
  static size_t SlotOf(uint32_t word) {
    return (word ^ word >> 15) * 0x2c1b3c6du >> (32 - kEntryBits);
  }

  bool Look(Bytes words, Room places) {
    for (size_t i = 0; i < places.size(); ++i) {
      uint32_t word = 0;
      std::memcpy(&word, words.data() + i * kWordBytes, kWordBytes);
      size_t at = SlotOf(word);
      // Where most words are found at once.
      if ((entries_[at] & kWordMask) != (kTaken | word) && !Find(word, at)) return false;
      places[i] = static_cast<std::byte>(entries_[at] >> kPlaceShift);
    }
    return true;
  }

  // Moves `at` on to the word's entry, which is made if there is none. Returns false if that is one
  // too many.
  bool Find(uint32_t word, size_t& at) {
    for (; entries_[at] != 0; at = (at + 1) % kEntries) {
      if ((entries_[at] & kWordMask) == (kTaken | word)) return true;
    }
    if (count_ == kTableMax) return false;
    entries_[at] = uint64_t{count_} << kPlaceShift | kTaken | word;
    words_[count_++] = word;
    return true;
  }

  std::array<uint64_t, kEntries> entries_{};
  std::array<uint32_t, kTableMax> words_;
  uint32_t count_ = 0;
};

// Eight bytes, each of which holds a number of `bits` bits, and these bits one after the other.
class Packing {
 public:
  static constexpr size_t kNumbers = 8;  // They take `bits` bytes.

  explicit Packing(unsigned bits)
      : bits_(bits),
        bytes_(LowBits(bits) * 0x0001000100010001),
        halves_(LowBits(2 * bits) * 0x0000000100000001),
        words_(LowBits(4 * bits)) {}

  // Each step joins neighbours: eight numbers become four, two, and one.
  uint64_t Pack(uint64_t numbers) const {
    numbers = (numbers & bytes_) | (numbers >> (8 - bits_) & bytes_ << bits_);
    numbers = (numbers & halves_) | (numbers >> (16 - 2 * bits_) & halves_ << 2 * bits_);
    return (numbers & words_) | (numbers >> (32 - 4 * bits_) & words_ << 4 * bits_);
  }
  // Higher bits than those of eight numbers do not matter.
  uint64_t Unpack(uint64_t packed) const {
    packed = (packed & words_) | (packed << (32 - 4 * bits_) & words_ << 32);
    packed = (packed & halves_) | (packed << (16 - 2 * bits_) & halves_ << 16);
    return (packed & bytes_) | (packed << (8 - bits_) & bytes_ << 8);
  }

 private:
  static constexpr uint64_t LowBits(unsigned count) { return (uint64_t{1} << count) - 1; }

  const unsigned bits_;
  const uint64_t bytes_;  // The low bits of every other byte, and so on.
  const uint64_t halves_;
  const uint64_t words_;
};

// How many bits say which of `count` words it is.
unsigned BitsFor(size_t count) { return static_cast<unsigned>(std::bit_width(count - 1)); }

size_t EncodedBytes(size_t number_count, size_t table_count) {
  return kWordBytes + (number_count * BitsFor(table_count) + 7) / 8 + table_count * kWordBytes;
}

// Packs one number from each byte of `places`. `out` may begin anywhere before `places` in the same
// memory: what is written ends before the bytes that have not been read yet.
void PackAll(Bytes places, unsigned bits, Room out) {
  const Packing packing(bits);
  size_t used = 0;
  size_t at = 0;
  uint64_t numbers = 0;
  for (; at + Packing::kNumbers <= places.size(); at += Packing::kNumbers) {
    std::memcpy(&numbers, places.data() + at, sizeof numbers);
    const uint64_t packed = packing.Pack(numbers);
    std::memcpy(out.data() + used, &packed, sizeof packed);
    used += bits;
  }
  numbers = 0;
  std::memcpy(&numbers, places.data() + at, places.size() - at);
  const uint64_t packed = packing.Pack(numbers);
  std::memcpy(out.data() + used, &packed, ((places.size() - at) * bits + 7) / 8);
}

// Fills data with words of a table whose places are packed.
class Unpacker {
 public:
  Unpacker(const std::array<uint32_t, kTableMax>& table, unsigned bits)
      : table_(table), bits_(bits), packing_(bits) {}

  // At least eight bytes come after those that are packed. Returns false if the last of these has
  // bits that are not used and not 0.
  bool Fill(const std::byte* packed, Room plain) {
    for (; plain.size() >= kGroupBytes; plain = plain.subspan(kGroupBytes)) {
      uint64_t eight = 0;
      std::memcpy(&eight, packed, sizeof eight);
      Put(packing_.Unpack(eight), plain.data());
      packed += bits_;
    }
    if (plain.empty()) return true;
    const size_t used_bits = plain.size() / kWordBytes * bits_;
    uint64_t last = 0;
    std::memcpy(&last, packed, (used_bits + 7) / 8);
    std::array<std::byte, kGroupBytes> padded;
    Put(packing_.Unpack(last), padded.data());
    std::memcpy(plain.data(), padded.data(), plain.size());
    return last >> used_bits == 0;
  }
  // The greatest place that there was.
  size_t greatest() const {
    size_t greatest = 0;
    for (size_t i = 0; i < Packing::kNumbers; ++i) greatest = std::max<size_t>(greatest, seen_[i]);
    return greatest;
  }

 private:
  static constexpr size_t kGroupBytes = Packing::kNumbers * kWordBytes;
  typedef uint8_t Places __attribute__((vector_size(Packing::kNumbers)));

  void Put(uint64_t places, std::byte* target) {
    const auto each = std::bit_cast<Places>(places);
    seen_ = each > seen_ ? each : seen_;
    for (size_t i = 0; i < Packing::kNumbers; ++i) {
      std::memcpy(target + i * kWordBytes, &table_[places >> 8 * i & 0xff], kWordBytes);
    }
  }

  const std::array<uint32_t, kTableMax>& table_;
  const unsigned bits_;
  const Packing packing_;
  Places seen_ = {};
};

}  // namespace

size_t EncodeFew(Bytes plain, uint64_t seed, Room out, reduce::Isa isa) {
  const size_t count = plain.size() / kWordBytes;
  if (count == 0 || plain.size() % kWordBytes != 0) return CopyTo(plain, out);
  DistinctWords distinct;
  // The places of all words lie at the end of the room until it is known how many bits each needs.
  const Room places = out.subspan(plain.size() - count, count);
  if (!distinct.Place(plain, places, internal::TableOf(isa))) {
    return EncodeInt8(plain, seed, out, isa);
  }
  const size_t used = EncodedBytes(count, distinct.count());
  if (used >= plain.size()) return CopyTo(plain, out);
  const uint32_t header = kHasTable | static_cast<uint32_t>(distinct.count());
  std::memcpy(out.data(), &header, kWordBytes);
  if (distinct.count() > 1) PackAll(places, BitsFor(distinct.count()), out.subspan(kWordBytes));
  CopyTo(distinct.bytes(), out.subspan(used - distinct.bytes().size()));
  return used;
}

bool DecodeFew(Bytes encoded, Room plain, reduce::Isa isa) {
  if (CopiedWhole(encoded, plain)) return true;
  const size_t count = plain.size() / kWordBytes;
  if (plain.size() % kWordBytes != 0 || encoded.size() < kWordBytes) return false;
  uint32_t header = 0;
  std::memcpy(&header, encoded.data(), kWordBytes);
  if ((header & kHasTable) == 0) return DecodeInt8(encoded, plain, isa);
  const size_t table_count = header & ~kHasTable;
  if (table_count == 0 || table_count > kTableMax) return false;
  if (encoded.size() > plain.size() || encoded.size() != EncodedBytes(count, table_count)) {
    return false;
  }
  std::array<uint32_t, kTableMax> table{};
  std::memcpy(table.data(), encoded.last(table_count * kWordBytes).data(),
              table_count * kWordBytes);
  if (table_count == 1) {
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(plain.data() + i * kWordBytes, table.data(), kWordBytes);
    }
    return true;
  }
  Unpacker unpacker(table, BitsFor(table_count));
  return unpacker.Fill(encoded.data() + kWordBytes, plain) && unpacker.greatest() < table_count;
}

}  // namespace talweg::encoding
