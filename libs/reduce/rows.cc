// SPDX-License-Identifier: Apache-2.0
#include "libs/reduce/rows.h"

#include <algorithm>
#include <cstring>

namespace talweg::reduce {
namespace {

int64_t NumberAt(const Rows& rows, uint64_t place, uint32_t number_bytes) {
  const std::byte* const at = rows.numbers + place * number_bytes;
  if (number_bytes == 4) {
    int32_t number;
    std::memcpy(&number, at, sizeof number);
    return number;
  }
  int64_t number;
  std::memcpy(&number, at, sizeof number);
  return number;
}

// Orders a heap, whose front has the lowest number, and of these the first part.
bool IsAfter(const RowCursor& a, const RowCursor& b) {
  return a.number != b.number ? a.number > b.number : a.part > b.part;
}

}  // namespace

std::optional<uint64_t> AddRows(const ReduceSpec& spec, const RowLayout& layout,
                                std::span<const Rows> parts, RowCursor* cursors,
                                const std::byte** inputs, int64_t* numbers, std::byte* values) {
  const uint64_t row_bytes = layout.elements * DTypeSize(spec.dtype);
  RowCursor* end = cursors;
  for (uint32_t part = 0; part < parts.size(); ++part) {
    if (parts[part].count == 0) continue;
    *end++ = {.number = NumberAt(parts[part], 0, layout.number_bytes), .place = 0, .part = part};
  }
  std::make_heap(cursors, end, IsAfter);
  uint64_t count = 0;
  while (end != cursors) {
    const int64_t number = cursors->number;
    size_t input_count = 0;
    while (end != cursors && cursors->number == number) {
      std::pop_heap(cursors, end, IsAfter);
      RowCursor& cursor = *(end - 1);
      const Rows& rows = parts[cursor.part];
      inputs[input_count++] = rows.values + cursor.place * row_bytes;
      if (++cursor.place == rows.count) {
        --end;
        continue;
      }
      cursor.number = NumberAt(rows, cursor.place, layout.number_bytes);
      if (cursor.number < number) return std::nullopt;
      std::push_heap(cursors, end, IsAfter);
    }
    numbers[count] = number;
    if (row_bytes > 0) {
      Reduce(spec, {inputs, input_count}, values + count * row_bytes, layout.elements);
    }
    ++count;
  }
  return count;
}

}  // namespace talweg::reduce
