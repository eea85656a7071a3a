// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_ENCODING_TABLES_H_
#define TALWEG_LIBS_ENCODING_TABLES_H_

#include "libs/encoding/block_table.h"
#include "libs/reduce/isa.h"

namespace talweg::encoding::internal {

// The kernels of an instruction set that this processor has.
const BlockTable& TableOf(reduce::Isa isa);

}  // namespace talweg::encoding::internal

#endif  // TALWEG_LIBS_ENCODING_TABLES_H_
