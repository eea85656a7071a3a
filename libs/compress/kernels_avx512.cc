// SPDX-License-Identifier: Apache-2.0
#include "libs/compress/kernels.h"

namespace talweg::compress::internal {
namespace {

struct Avx512 {};

}  // namespace

constinit const KernelTable kAvx512Kernels = Kernels<Avx512>::Table();

}  // namespace talweg::compress::internal
