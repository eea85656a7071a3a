// SPDX-License-Identifier: Apache-2.0
#include "libs/encoding/block_kernels.h"

namespace talweg::encoding::internal {
namespace {

struct Avx512 {
  static constexpr size_t kVectorBytes = 64;
  static constexpr size_t kMatchMax = 8;
};

}  // namespace

constinit const BlockTable kAvx512Blocks = BlockKernels<Avx512>::Table();

}  // namespace talweg::encoding::internal
