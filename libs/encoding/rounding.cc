// SPDX-License-Identifier: Apache-2.0
#include "libs/encoding/rounding.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "libs/encoding/block_table.h"
#include "libs/encoding/copy.h"
#include "libs/encoding/tables.h"

namespace talweg::encoding {
namespace {

using internal::BlockTable;
using internal::kBlockFloats;
using internal::TableOf;
using Bytes = std::span<const std::byte>;
using Room = std::span<std::byte>;

constexpr size_t kFloatBytes = sizeof(float);
constexpr size_t kHalfBytes = sizeof(uint16_t);
constexpr size_t kBlockBytes = kBlockFloats * kFloatBytes;

// Blocks whose greatest number is not between these travel as they are. Between them 127 / greatest
// and greatest / 127 have full precision, and no number becomes infinite.
constexpr uint32_t kGreatestMin = std::bit_cast<uint32_t>(0x1p-100f);
constexpr uint32_t kGreatestEnd = std::bit_cast<uint32_t>(0x1p127f);
constexpr uint32_t kInfinity = 0x7f800000;
// In the place of the scale of a block that travels as it is.
constexpr uint32_t kAsItIs = 0x7fc00000;

// Gives `work` the data block by block: its bytes, where they are and how many. Only whole blocks
// are touched: the last one is copied to one that ends in zeros.
template <class Work>
void ForEachBlock(Bytes plain, const Work& work) {
  for (size_t at = 0; at < plain.size(); at += kBlockBytes) {
    const size_t bytes = std::min(kBlockBytes, plain.size() - at);
    if (bytes == kBlockBytes) {
      work(plain.data() + at, at, bytes);
    } else {
      std::array<std::byte, kBlockBytes> padded{};
      std::memcpy(padded.data(), plain.data() + at, bytes);
      work(padded.data(), at, bytes);
    }
  }
}

// The same for blocks that are written. `work` may return false, which ends it.
template <class Work>
bool FillEachBlock(Room plain, const Work& work) {
  for (size_t at = 0; at < plain.size(); at += kBlockBytes) {
    const size_t bytes = std::min(kBlockBytes, plain.size() - at);
    if (bytes == kBlockBytes) {
      if (!work(plain.data() + at, at, bytes)) return false;
    } else {
      std::array<std::byte, kBlockBytes> padded;
      if (!work(padded.data(), at, bytes)) return false;
      std::memcpy(plain.data() + at, padded.data(), bytes);
    }
  }
  return true;
}

size_t ScalesBytes(size_t plain_bytes) {
  return (plain_bytes + kBlockBytes - 1) / kBlockBytes * kFloatBytes;
}

uint32_t KeyOf(uint64_t seed) { return static_cast<uint32_t>(seed ^ seed >> 32); }

}  // namespace

size_t EncodeBf16(Bytes plain, Room out, reduce::Isa isa) {
  if (plain.size() % kFloatBytes != 0) return CopyTo(plain, out);
  const BlockTable& table = TableOf(isa);
  std::array<std::byte, kBlockFloats * kHalfBytes> halves;
  ForEachBlock(plain, [&](const std::byte* block, size_t at, size_t bytes) {
    table.to_bf16(block, halves.data());
    std::memcpy(out.data() + at / 2, halves.data(), bytes / 2);
  });
  return plain.size() / 2;
}

bool DecodeBf16(Bytes encoded, Room plain, reduce::Isa isa) {
  if (plain.size() % kFloatBytes != 0) return CopiedWhole(encoded, plain);
  if (encoded.size() * 2 != plain.size()) return false;
  const BlockTable& table = TableOf(isa);
  std::array<std::byte, kBlockFloats * kHalfBytes> halves;
  return FillEachBlock(plain, [&](std::byte* block, size_t at, size_t bytes) {
    std::memcpy(halves.data(), encoded.data() + at / 2, bytes / 2);
    table.from_bf16(halves.data(), block);
    return true;
  });
}

size_t EncodeInt8(Bytes plain, uint64_t seed, Room out, reduce::Isa isa) {
  const BlockTable& table = TableOf(isa);
  size_t used = ScalesBytes(plain.size());
  bool fits = plain.size() % kFloatBytes == 0 && used < plain.size();
  std::array<std::byte, kBlockFloats> numbers;
  const auto put = [&](const std::byte* from, size_t bytes) {
    fits = fits && used + bytes < plain.size();
    if (fits) std::memcpy(out.data() + used, from, bytes);
    used += bytes;
  };
  if (fits) {
    ForEachBlock(plain, [&](const std::byte* block, size_t at, size_t bytes) {
      const uint32_t greatest = table.greatest(block);
      uint32_t scale = 0;
      if (greatest != 0 && (greatest < kGreatestMin || greatest >= kGreatestEnd)) {
        scale = kAsItIs;
        put(block, bytes);
      } else if (greatest != 0) {
        scale = std::bit_cast<uint32_t>(std::bit_cast<float>(greatest) / internal::kLevels);
        table.round(block, internal::kLevels / std::bit_cast<float>(greatest), KeyOf(seed),
                    static_cast<uint32_t>(at / kFloatBytes), numbers.data());
        put(numbers.data(), bytes / kFloatBytes);
      }
      std::memcpy(out.data() + at / kBlockBytes * kFloatBytes, &scale, kFloatBytes);
    });
  }
  return fits ? used : CopyTo(plain, out);
}

bool DecodeInt8(Bytes encoded, Room plain, reduce::Isa isa) {
  if (CopiedWhole(encoded, plain)) return true;
  const BlockTable& table = TableOf(isa);
  const size_t scales_bytes = ScalesBytes(plain.size());
  if (plain.size() % kFloatBytes != 0 || encoded.size() < scales_bytes) return false;
  Bytes rest = encoded.subspan(scales_bytes);
  std::array<std::byte, kBlockFloats> numbers{};
  const bool is_whole = FillEachBlock(plain, [&](std::byte* block, size_t at, size_t bytes) {
    uint32_t scale = 0;
    std::memcpy(&scale, encoded.data() + at / kBlockBytes * kFloatBytes, kFloatBytes);
    if (scale >= kInfinity && scale != kAsItIs) return false;
    const size_t taken = scale == 0 ? 0 : scale == kAsItIs ? bytes : bytes / kFloatBytes;
    if (rest.size() < taken) return false;
    if (scale == 0) {
      std::memset(block, 0, bytes);
    } else if (scale == kAsItIs) {
      std::memcpy(block, rest.data(), bytes);
    } else {
      std::memcpy(numbers.data(), rest.data(), taken);
      table.widen(numbers.data(), std::bit_cast<float>(scale), block);
    }
    rest = rest.subspan(taken);
    return true;
  });
  return is_whole && rest.empty();
}

}  // namespace talweg::encoding
