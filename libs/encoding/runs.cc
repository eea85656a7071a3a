// SPDX-License-Identifier: Apache-2.0
#include "libs/encoding/runs.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "libs/encoding/copy.h"

namespace talweg::encoding {
namespace {

using Bytes = std::span<const std::byte>;
using Room = std::span<std::byte>;

constexpr size_t kWordBytes = sizeof(uint32_t);
constexpr uint32_t kRepeats = uint32_t{1} << 31;
constexpr uint32_t kCountMax = kRepeats - 1;
// A shorter run takes no less than the words themselves where it ends a record of words.
constexpr size_t kRunWordsMin = 3;

uint32_t WordAt(Bytes bytes, size_t word) {
  uint32_t value = 0;
  std::memcpy(&value, bytes.data() + word * kWordBytes, kWordBytes);
  return value;
}

// Writes records until there is no more room.
class RecordWriter {
 public:
  explicit RecordWriter(Room room) : room_(room) {}

  void Words(Bytes words) {
    while (!words.empty()) {
      const size_t bytes = std::min(words.size(), size_t{kCountMax} * kWordBytes);
      Put(static_cast<uint32_t>(bytes / kWordBytes));
      PutBytes(words.first(bytes));
      words = words.subspan(bytes);
    }
  }
  void Run(uint32_t word, size_t count) {
    while (count > 0) {
      const size_t now = std::min(count, size_t{kCountMax});
      Put(static_cast<uint32_t>(now) | kRepeats);
      Put(word);
      count -= now;
    }
  }
  void PutBytes(Bytes bytes) {
    fits_ = fits_ && bytes.size() <= room_.size() - used_;
    if (!fits_ || bytes.empty()) return;
    std::memcpy(room_.data() + used_, bytes.data(), bytes.size());
    used_ += bytes.size();
  }

  bool fits() const { return fits_; }
  size_t used() const { return used_; }

 private:
  void Put(uint32_t value) { PutBytes(std::as_bytes(std::span(&value, 1))); }

  const Room room_;
  size_t used_ = 0;
  bool fits_ = true;
};

// Takes the first `count` bytes of `bytes` off; nullptr if it has fewer.
const std::byte* Take(Bytes& bytes, size_t count) {
  if (bytes.size() < count) return nullptr;
  const std::byte* const first = bytes.data();
  bytes = bytes.subspan(count);
  return first;
}

}  // namespace

size_t EncodeRuns(Bytes plain, Room out) {
  const size_t count = plain.size() / kWordBytes;
  RecordWriter writer(out.first(plain.size()));
  size_t words_from = 0;  // Words from here on are in no record yet.
  for (size_t at = 0; at < count && writer.fits();) {
    const uint32_t word = WordAt(plain, at);
    size_t end = at + 1;
    while (end < count && WordAt(plain, end) == word) ++end;
    if (end - at >= kRunWordsMin) {
      writer.Words(plain.subspan(words_from * kWordBytes, (at - words_from) * kWordBytes));
      writer.Run(word, end - at);
      words_from = end;
    }
    at = end;
  }
  writer.Words(plain.subspan(words_from * kWordBytes, (count - words_from) * kWordBytes));
  writer.PutBytes(plain.subspan(count * kWordBytes));
  if (writer.fits() && writer.used() < plain.size()) return writer.used();
  return CopyTo(plain, out);
}

bool DecodeRuns(Bytes encoded, Room plain) {
  if (CopiedWhole(encoded, plain)) return true;
  const size_t count = plain.size() / kWordBytes;
  for (size_t at = 0; at < count;) {
    uint32_t header = 0;
    const std::byte* const first = Take(encoded, kWordBytes);
    if (first == nullptr) return false;
    std::memcpy(&header, first, kWordBytes);
    const size_t words = header & ~kRepeats;
    if (words == 0 || words > count - at) return false;
    const bool repeats = (header & kRepeats) != 0;
    const std::byte* const source = Take(encoded, (repeats ? 1 : words) * kWordBytes);
    if (source == nullptr) return false;
    std::byte* const target = plain.data() + at * kWordBytes;
    if (repeats) {
      uint32_t word = 0;
      std::memcpy(&word, source, kWordBytes);
      for (size_t i = 0; i < words; ++i) std::memcpy(target + i * kWordBytes, &word, kWordBytes);
    } else {
      std::memcpy(target, source, words * kWordBytes);
    }
    at += words;
  }
  return CopiedWhole(encoded, plain.subspan(count * kWordBytes));
}

}  // namespace talweg::encoding
