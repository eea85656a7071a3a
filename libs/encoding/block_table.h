// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_ENCODING_BLOCK_TABLE_H_
#define TALWEG_LIBS_ENCODING_BLOCK_TABLE_H_

#include <cstddef>
#include <cstdint>

// What rounding.cc, few.cc and the translation units of the instruction sets (kernels_*.cc) agree
// on. Those units are compiled for processors that this one may not be, so only types and templates
// that are tagged by an internal-linkage type may stand here and in block_kernels.h (libs/reduce/
// kernel_table.h says why).
namespace talweg::encoding::internal {

// A block is what has one scale. More floats in a block: fewer bytes for scales, and coarser steps.
inline constexpr size_t kBlockFloats = 256;
inline constexpr int32_t kLevels = 127;  // The greatest number of a block becomes 127 or -127.

// Each takes one whole block, at any alignment.
struct BlockTable {
  // The bits of the greatest magnitude. From 0x7f800000 on: a number is not finite.
  uint32_t (*greatest)(const std::byte* block);
  // Rounds each float times `inverse`, which lies within -127 to 127, to a neighbouring whole
  // number, up with the probability of its fraction. What is drawn depends on `key` and on the
  // float's place, from `first_place` on.
  void (*round)(const std::byte* block, float inverse, uint32_t key, uint32_t first_place,
                std::byte* out);
  // The whole numbers times `scale`.
  void (*widen)(const std::byte* bytes, float scale, std::byte* block);
  void (*to_bf16)(const std::byte* block, std::byte* out);
  void (*from_bf16)(const std::byte* halves, std::byte* block);
  // Whether each word is one of the `count` distinct words of `known`. Then `places` has a byte for
  // each word, which of them it is; else it means nothing.
  bool (*match)(const std::byte* block, const uint32_t* known, size_t count, std::byte* places);
};

extern const BlockTable kPortableBlocks;
#if defined(__x86_64__)
extern const BlockTable kAvx2Blocks;
extern const BlockTable kAvx512Blocks;
#endif

}  // namespace talweg::encoding::internal

#endif  // TALWEG_LIBS_ENCODING_BLOCK_TABLE_H_
