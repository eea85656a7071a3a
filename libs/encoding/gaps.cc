// SPDX-License-Identifier: Apache-2.0
#include "libs/encoding/gaps.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>

#include "libs/encoding/copy.h"

namespace talweg::encoding {
namespace {

using Bytes = std::span<const std::byte>;
using Room = std::span<std::byte>;

constexpr size_t kWordBytes = sizeof(uint32_t);

// A gap below kShortEnd takes one byte, and one below kMiddleEnd two. Others take kLong and 4 more.
constexpr size_t kShortEnd = 192;
constexpr uint8_t kLong = 255;
constexpr size_t kMiddleEnd = kShortEnd + (kLong - kShortEnd) * size_t{256};
constexpr size_t kLongBytes = 1 + sizeof(uint32_t);

// Words are looked at in groups: a bit of a mask says which of them are not 0.
constexpr size_t kGroupWords = 32;
constexpr size_t kGroupBytes = kGroupWords * kWordBytes;

// Vectors that every processor has. Wider ones would gain little: what takes time is to copy words.
constexpr size_t kLanes = 4;
typedef uint32_t Words __attribute__((vector_size(kLanes * kWordBytes)));

uint32_t MaskOf(const std::byte* group) {
  Words bits = {1, 2, 4, 8};
  Words found = {};
  for (size_t at = 0; at < kGroupBytes; at += sizeof(Words)) {
    Words words;
    std::memcpy(&words, group + at, sizeof words);
    found |= (words != 0) & bits;
    bits <<= kLanes;
  }
  return found[0] | found[1] | found[2] | found[3];
}

// Gives `work` the masks one by one, with the place of the first word of each. It may return false,
// which ends it.
template <class Work>
bool ForEachMask(Bytes words, const Work& work) {
  size_t at = 0;
  for (; at + kGroupBytes <= words.size(); at += kGroupBytes) {
    if (!work(MaskOf(words.data() + at), at / kWordBytes)) return false;
  }
  if (at == words.size()) return true;
  std::array<std::byte, kGroupBytes> padded{};
  std::memcpy(padded.data(), words.data() + at, words.size() - at);
  return work(MaskOf(padded.data()), at / kWordBytes);
}

// Returns the word.
uint32_t CopyWord(const std::byte* from, std::byte* to) {
  uint32_t word = 0;
  std::memcpy(&word, from, kWordBytes);
  std::memcpy(to, &word, kWordBytes);
  return word;
}

// Returns how many bytes `gap` takes, and writes them if `room` has so many.
size_t PutGap(size_t gap, Room room) {
  const size_t bytes = gap < kShortEnd ? 1 : gap < kMiddleEnd ? 2 : kLongBytes;
  if (bytes > room.size()) return bytes;
  if (bytes == 1) {
    room[0] = static_cast<std::byte>(gap);
  } else if (bytes == 2) {
    room[0] = static_cast<std::byte>(kShortEnd + (gap - kShortEnd) / 256);
    room[1] = static_cast<std::byte>((gap - kShortEnd) % 256);
  } else {
    const auto whole = static_cast<uint32_t>(gap);
    room[0] = std::byte{kLong};
    std::memcpy(&room[1], &whole, sizeof whole);
  }
  return bytes;
}

// How many bytes the words that are not 0, and their places, take.
struct Sizes {
  size_t kept_bytes = 0;
  size_t places_bytes = 0;
};

// Writes the words that are not 0 to `kept`, and the gap before each to `places`. Returns nullopt
// if they do not fit.
std::optional<Sizes> PutGaps(Bytes words, Room kept, Room places) {
  Sizes used;
  size_t next = 0;  // The place after the last word that was not 0.
  const bool fits = ForEachMask(words, [&](uint32_t mask, size_t first) {
    for (; mask != 0; mask &= mask - 1) {
      const size_t place = first + static_cast<size_t>(std::countr_zero(mask));
      used.places_bytes += PutGap(place - next, places.subspan(used.places_bytes));
      if (used.places_bytes > places.size() || used.kept_bytes + kWordBytes > kept.size()) {
        return false;
      }
      CopyWord(words.data() + place * kWordBytes, kept.data() + used.kept_bytes);
      used.kept_bytes += kWordBytes;
      next = place + 1;
    }
    return true;
  });
  return fits ? std::optional(used) : std::nullopt;
}

// The same with a bit for each word. `places` has room for them.
std::optional<Sizes> PutBits(Bytes words, Room kept, Room places) {
  Sizes used = {.places_bytes = places.size()};
  const bool fits = ForEachMask(words, [&](uint32_t mask, size_t first) {
    const Room bits = places.subspan(first / 8);
    std::memcpy(bits.data(), &mask, std::min(sizeof mask, bits.size()));
    const size_t bytes = static_cast<size_t>(std::popcount(mask)) * kWordBytes;
    if (bytes > kept.size() - used.kept_bytes) return false;
    std::byte* target = kept.data() + used.kept_bytes;
    used.kept_bytes += bytes;
    const std::byte* const source = words.data() + first * kWordBytes;
    if (bytes == kGroupBytes) {
      std::memcpy(target, source, kGroupBytes);
      return true;
    }
    for (; mask != 0; mask &= mask - 1, target += kWordBytes) {
      CopyWord(source + static_cast<size_t>(std::countr_zero(mask)) * kWordBytes, target);
    }
    return true;
  });
  return fits ? std::optional(used) : std::nullopt;
}

size_t BitsBytes(size_t word_count) { return (word_count + 7) / 8; }

// Reads a gap whose first byte was kShortEnd or more. Returns nullopt if there is no such gap.
std::optional<size_t> TakeLongGap(uint8_t first, Bytes& places) {
  if (first != kLong) {
    if (places.empty()) return std::nullopt;
    const auto second = static_cast<uint8_t>(places[0]);
    places = places.subspan(1);
    return kShortEnd + (first - kShortEnd) * size_t{256} + second;
  }
  uint32_t whole = 0;
  if (places.size() < sizeof whole) return std::nullopt;
  std::memcpy(&whole, places.data(), sizeof whole);
  places = places.subspan(sizeof whole);
  return whole < kMiddleEnd ? std::nullopt : std::optional<size_t>(whole);
}

// Both fill `words`, which are all 0, with the words of `kept`. Return false if one of these is 0,
// or if the places are not those of so many words.
bool FillByGaps(Bytes kept, Bytes places, Room words) {
  size_t left = words.size() / kWordBytes;
  std::byte* target = words.data();
  bool has_zero = false;
  for (size_t at = 0; at < kept.size(); at += kWordBytes) {
    if (places.empty()) return false;
    const auto first = static_cast<uint8_t>(places[0]);
    places = places.subspan(1);
    size_t gap = first;
    if (first >= kShortEnd) {
      const std::optional<size_t> taken = TakeLongGap(first, places);
      if (!taken) return false;
      gap = *taken;
    }
    if (gap >= left) return false;
    left -= gap + 1;
    target += gap * kWordBytes;
    has_zero |= CopyWord(kept.data() + at, target) == 0;
    target += kWordBytes;
  }
  return places.empty() && !has_zero;
}

bool FillByBits(Bytes kept, Bytes places, Room words) {
  const size_t count = words.size() / kWordBytes;
  bool has_zero = false;
  for (size_t first = 0; first < count; first += kGroupWords) {
    const Bytes bits = places.subspan(first / 8);
    uint32_t mask = 0;
    std::memcpy(&mask, bits.data(), std::min(sizeof mask, bits.size()));
    if (count - first < kGroupWords && mask >> (count - first) != 0) return false;
    const size_t bytes = static_cast<size_t>(std::popcount(mask)) * kWordBytes;
    if (bytes > kept.size()) return false;
    const std::byte* source = kept.data();
    for (; mask != 0; mask &= mask - 1) {
      const size_t place = first + static_cast<size_t>(std::countr_zero(mask));
      has_zero |= CopyWord(source, words.data() + place * kWordBytes) == 0;
      source += kWordBytes;
    }
    kept = kept.subspan(bytes);
  }
  return kept.empty() && !has_zero;
}

}  // namespace

size_t EncodeGaps(Bytes plain, Room out) {
  const size_t word_count = plain.size() / kWordBytes;
  const Bytes words = plain.first(word_count * kWordBytes);
  const Bytes rest = plain.subspan(words.size());
  const size_t bits_bytes = BitsBytes(word_count);
  if (kWordBytes + bits_bytes > words.size()) return CopyTo(plain, out);
  // The places lie at the end of this room until it is known how many words come before them.
  const Room kept = out.subspan(kWordBytes, words.size() - kWordBytes - bits_bytes);
  const Room places = out.subspan(words.size() - bits_bytes, bits_bytes);
  std::optional<Sizes> sizes = PutGaps(words, kept, places.first(bits_bytes - 1));
  if (!sizes) sizes = PutBits(words, kept, places);
  if (!sizes) return CopyTo(plain, out);
  const size_t used = kWordBytes + sizes->kept_bytes + sizes->places_bytes;
  if (used >= words.size()) return CopyTo(plain, out);
  const auto kept_count = static_cast<uint32_t>(sizes->kept_bytes / kWordBytes);
  std::memcpy(out.data(), &kept_count, sizeof kept_count);
  std::memmove(kept.data() + sizes->kept_bytes, places.data(), sizes->places_bytes);
  return used + CopyTo(rest, out.subspan(used));
}

bool DecodeGaps(Bytes encoded, Room plain) {
  if (CopiedWhole(encoded, plain)) return true;
  const size_t word_count = plain.size() / kWordBytes;
  const Room words = plain.first(word_count * kWordBytes);
  const Room rest = plain.subspan(words.size());
  if (encoded.size() > plain.size() || encoded.size() < kWordBytes + rest.size()) return false;
  uint32_t kept_count = 0;
  std::memcpy(&kept_count, encoded.data(), sizeof kept_count);
  Bytes places = encoded.subspan(kWordBytes, encoded.size() - kWordBytes - rest.size());
  if (kept_count > places.size() / kWordBytes) return false;
  const Bytes kept = places.first(kept_count * kWordBytes);
  places = places.subspan(kept.size());
  if (places.size() > BitsBytes(word_count)) return false;
  std::fill(words.begin(), words.end(), std::byte{0});
  CopyTo(encoded.last(rest.size()), rest);
  return places.size() == BitsBytes(word_count) ? FillByBits(kept, places, words)
                                                : FillByGaps(kept, places, words);
}

}  // namespace talweg::encoding
