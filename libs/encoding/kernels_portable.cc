// SPDX-License-Identifier: Apache-2.0
#include "libs/encoding/block_kernels.h"

namespace talweg::encoding::internal {
namespace {

struct Portable {
  static constexpr size_t kVectorBytes = 16;
  static constexpr size_t kMatchMax = 0;
};

}  // namespace

constinit const BlockTable kPortableBlocks = BlockKernels<Portable>::Table();

}  // namespace talweg::encoding::internal
