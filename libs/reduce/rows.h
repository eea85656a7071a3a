// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_REDUCE_ROWS_H_
#define TALWEG_LIBS_REDUCE_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "libs/reduce/reduce.h"

namespace talweg::reduce {

// Some rows of a tensor. All others are zeros.
struct Rows {
  const std::byte* numbers = nullptr;  // Ascending; one may come several times. Any alignment.
  const std::byte* values = nullptr;   // A row for each number. Any alignment.
  uint64_t count = 0;
};

// Where a sum is in one part.
struct RowCursor {
  int64_t number = 0;  // That of the part's next row.
  uint64_t place = 0;  // Where that row is in the part.
  uint32_t part = 0;
};

// How rows lie in memory.
struct RowLayout {
  uint32_t number_bytes = 8;  // 4 or 8: numbers are signed integers of that size.
  uint64_t elements = 0;      // A row has so many.
};

// Sums the rows of all parts. Rows with the same number are combined by Reduce, in the order of
// `parts`, and within a part in its own order; `spec` has no weights. A row whose number comes once
// is combined with nothing.
//
// Writes the numbers, ascending, to `numbers`, and the rows to `values`. Both have room for the
// rows of all parts, and overlap no part. `cursors` has an element for each part, and `inputs` for
// each row of all parts; their values do not matter. Returns how many rows there are; nullopt if
// the numbers of a part do not ascend.
std::optional<uint64_t> AddRows(const ReduceSpec& spec, const RowLayout& layout,
                                std::span<const Rows> parts, RowCursor* cursors,
                                const std::byte** inputs, int64_t* numbers, std::byte* values);

}  // namespace talweg::reduce

#endif  // TALWEG_LIBS_REDUCE_ROWS_H_
