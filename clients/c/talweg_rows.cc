// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>

#include "clients/c/abi.h"
#include "clients/c/talweg_exchange.h"
#include "libs/reduce/rows.h"

namespace {

using talweg::DType;
using talweg::Op;
using talweg::c::Invalid;
using talweg::c::LastError;
using talweg::c::ToC;
using talweg::shm::RankStatus;
namespace reduce = talweg::reduce;

DType DTypeOf(const talweg_row_sum& sum) {
  uint32_t number = 0;  // A C program may have set it to any value.
  static_assert(sizeof number == sizeof sum.dtype);
  std::memcpy(&number, &sum.dtype, sizeof number);
  return number > 0xff ? DType::kUnspecified : static_cast<DType>(number);
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// Returns an array of zeros, or null. The library needs nothing of the C++ runtime, so no vector.
template <typename Element>
std::unique_ptr<Element, Free> Array(uint64_t count) {
  static_assert(std::is_trivially_destructible_v<Element>);
  if (count == std::numeric_limits<uint64_t>::max()) return nullptr;
  return std::unique_ptr<Element, Free>(
      static_cast<Element*>(std::calloc(count + 1, sizeof(Element))));
}

}  // namespace

extern "C" talweg_status talweg_add_rows(const talweg_row_sum* sum, const talweg_rows* parts,
                                         uint32_t part_count, int64_t* numbers, void* values,
                                         uint64_t* count) {
  if (sum == nullptr || sum->struct_bytes < sizeof(talweg_row_sum) || count == nullptr) {
    return Invalid("talweg_add_rows: `sum` or `count` is NULL, or struct_bytes is not set");
  }
  *count = 0;
  const DType dtype = DTypeOf(*sum);
  const Op op = sum->divisor == 1 ? Op::kSum : Op::kAverage;
  if (sum->divisor == 0 || !talweg::IsValid(dtype) || !reduce::IsReduction(dtype, op)) {
    return Invalid(
        "talweg_add_rows: there is no such sum: `divisor` is 1 or more, and only floats "
        "are divided");
  }
  if (sum->number_bytes != 4 && sum->number_bytes != 8) {
    return Invalid("talweg_add_rows: `number_bytes` is neither 4 nor 8");
  }
  uint64_t row_count = 0;
  for (uint32_t i = 0; i < part_count; ++i) {
    if (__builtin_add_overflow(row_count, parts[i].count, &row_count)) {
      return Invalid("talweg_add_rows: the parts have more rows than 64 bits count");
    }
  }
  const auto rows = Array<reduce::Rows>(part_count);
  const auto cursors = Array<reduce::RowCursor>(part_count);
  const auto inputs = Array<const std::byte*>(row_count);
  if (rows == nullptr || cursors == nullptr || inputs == nullptr) {
    return ToC(LastError().Fail(RankStatus::kOutOfMemory,
                                "talweg_add_rows: no memory for %u parts with %llu rows",
                                part_count, static_cast<unsigned long long>(row_count)));
  }
  for (uint32_t i = 0; i < part_count; ++i) {
    const talweg_rows& part = parts[i];
    const bool has_values = part.values != nullptr || sum->elements == 0;
    if (part.count > 0 && (part.numbers == nullptr || !has_values)) {
      return Invalid("talweg_add_rows: a part has rows, but its `numbers` or `values` is NULL");
    }
    rows.get()[i] = {static_cast<const std::byte*>(part.numbers),
                     static_cast<const std::byte*>(part.values), part.count};
  }
  const reduce::ReduceSpec spec = {
      .dtype = dtype, .op = op, .weights = {}, .divisor = sum->divisor};
  const reduce::RowLayout layout = {sum->number_bytes, sum->elements};
  const auto added = reduce::AddRows(spec, layout, {rows.get(), part_count}, cursors.get(),
                                     inputs.get(), numbers, static_cast<std::byte*>(values));
  if (!added) return Invalid("talweg_add_rows: the numbers of a part do not ascend");
  *count = *added;
  return TALWEG_OK;
}
