// SPDX-License-Identifier: Apache-2.0
#include "libs/encoding/block_kernels.h"

namespace talweg::encoding::internal {
namespace {

struct Avx2 {
  static constexpr size_t kVectorBytes = 32;
  static constexpr size_t kMatchMax = 2;
};

}  // namespace

constinit const BlockTable kAvx2Blocks = BlockKernels<Avx2>::Table();

}  // namespace talweg::encoding::internal
