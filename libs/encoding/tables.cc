// SPDX-License-Identifier: Apache-2.0
#include "libs/encoding/tables.h"

#include "libs/base/check.h"

namespace talweg::encoding::internal {

const BlockTable& TableOf(reduce::Isa isa) {
  TALWEG_CHECK(reduce::IsSupported(isa));
  switch (isa) {
#if defined(__x86_64__)
    case reduce::Isa::kAvx2: return kAvx2Blocks;
    case reduce::Isa::kAvx512: return kAvx512Blocks;
#else
    case reduce::Isa::kAvx2:
    case reduce::Isa::kAvx512:
#endif
    case reduce::Isa::kPortable: break;
  }
  return kPortableBlocks;
}

}  // namespace talweg::encoding::internal
