// SPDX-License-Identifier: Apache-2.0
#include "libs/compress/kernels.h"

namespace talweg::compress::internal {
namespace {

struct Avx2 {};

}  // namespace

constinit const KernelTable kAvx2Kernels = Kernels<Avx2>::Table();

}  // namespace talweg::compress::internal
