// SPDX-License-Identifier: Apache-2.0
#include "libs/compress/kernels.h"

namespace talweg::compress::internal {
namespace {

struct Portable {};

}  // namespace

constinit const KernelTable kPortableKernels = Kernels<Portable>::Table();

}  // namespace talweg::compress::internal
