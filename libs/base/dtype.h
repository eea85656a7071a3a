// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_DTYPE_H_
#define TALWEG_LIBS_BASE_DTYPE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

// Element types and operations, each a row of a table. A new one is an enumerator and a row here,
// and a row of the kernels in libs/reduce.
namespace talweg {

// Element types. The values are part of the wire, of shared memory and of the C ABI.
enum class DType : uint8_t {
  kUnspecified = 0,
  kF32 = 1,
  kF64 = 2,
  kF16 = 3,
  kBF16 = 4,
  kI8 = 5,
  kU8 = 6,
  kI32 = 7,
  kI64 = 8,
  kI16 = 9,
  kU16 = 10,
  kU32 = 11,
  kU64 = 12,
  kBool = 13,  // A byte: 0 is false, 1 is true. Other bytes are taken as they are.
};

// What a round does with its contributions. The values are part of the wire, as above.
enum class Op : uint8_t {
  kUnspecified = 0,
  kSum = 1,
  kAverage = 2,  // The sum divided by the number of ranks that contributed.
  kMin = 3,
  kMax = 4,
  kProduct = 5,
  kCopy = 6,  // The bytes of the one rank that gives them, unchanged.
  kBitAnd = 7,
  kBitOr = 8,
  kBitXor = 9,
};

enum class ElementKind : uint8_t { kFloat, kSigned, kUnsigned, kBool };

struct DTypeRow {
  DType dtype;
  std::string_view name;
  size_t bytes;  // For one element.
  ElementKind kind;
};

inline constexpr DTypeRow kDTypeRows[] = {
    {DType::kF32, "f32", 4, ElementKind::kFloat},
    {DType::kF64, "f64", 8, ElementKind::kFloat},
    {DType::kF16, "f16", 2, ElementKind::kFloat},
    {DType::kBF16, "bf16", 2, ElementKind::kFloat},
    {DType::kI8, "i8", 1, ElementKind::kSigned},
    {DType::kU8, "u8", 1, ElementKind::kUnsigned},
    {DType::kI32, "i32", 4, ElementKind::kSigned},
    {DType::kI64, "i64", 8, ElementKind::kSigned},
    {DType::kI16, "i16", 2, ElementKind::kSigned},
    {DType::kU16, "u16", 2, ElementKind::kUnsigned},
    {DType::kU32, "u32", 4, ElementKind::kUnsigned},
    {DType::kU64, "u64", 8, ElementKind::kUnsigned},
    {DType::kBool, "bool", 1, ElementKind::kBool},
};

struct OpRow {
  Op op;
  std::string_view name;
  // The element kinds for which the op has a meaning.
  bool floats;
  bool integers;
  bool bools;
};

inline constexpr OpRow kOpRows[] = {
    {.op = Op::kSum, .name = "sum", .floats = true, .integers = true, .bools = false},
    {.op = Op::kAverage, .name = "average", .floats = true, .integers = false, .bools = false},
    {.op = Op::kMin, .name = "min", .floats = true, .integers = true, .bools = true},
    {.op = Op::kMax, .name = "max", .floats = true, .integers = true, .bools = true},
    {.op = Op::kProduct, .name = "product", .floats = true, .integers = true, .bools = false},
    {.op = Op::kCopy, .name = "copy", .floats = true, .integers = true, .bools = true},
    {.op = Op::kBitAnd, .name = "bit_and", .floats = false, .integers = true, .bools = true},
    {.op = Op::kBitOr, .name = "bit_or", .floats = false, .integers = true, .bools = true},
    {.op = Op::kBitXor, .name = "bit_xor", .floats = false, .integers = true, .bools = true},
};

// Returns the row of a value, or null. Rows are in the order of the values, from 1.
constexpr const DTypeRow* RowOf(DType dtype) {
  const size_t row = static_cast<size_t>(dtype) - 1;  // kUnspecified: beyond the last.
  return row < std::size(kDTypeRows) ? &kDTypeRows[row] : nullptr;
}
constexpr const OpRow* RowOf(Op op) {
  const size_t row = static_cast<size_t>(op) - 1;
  return row < std::size(kOpRows) ? &kOpRows[row] : nullptr;
}
static_assert([] {
  for (const DTypeRow& row : kDTypeRows) {
    if (RowOf(row.dtype) != &row) return false;
  }
  for (const OpRow& row : kOpRows) {
    if (RowOf(row.op) != &row) return false;
  }
  return true;
}());

// Every value, in order.
inline constexpr auto kAllDTypes = [] {
  std::array<DType, std::size(kDTypeRows)> all = {};
  for (size_t i = 0; i < all.size(); ++i) all[i] = kDTypeRows[i].dtype;
  return all;
}();
inline constexpr auto kAllOps = [] {
  std::array<Op, std::size(kOpRows)> all = {};
  for (size_t i = 0; i < all.size(); ++i) all[i] = kOpRows[i].op;
  return all;
}();

constexpr bool IsValid(DType dtype) { return RowOf(dtype) != nullptr; }
constexpr bool IsValid(Op op) { return RowOf(op) != nullptr; }

// Returns the bytes of one element; 0 for a value that is not a dtype.
constexpr size_t DTypeSize(DType dtype) { return IsValid(dtype) ? RowOf(dtype)->bytes : 0; }

constexpr bool IsFloat(DType dtype) {
  return IsValid(dtype) && RowOf(dtype)->kind == ElementKind::kFloat;
}
constexpr bool IsSigned(DType dtype) {
  return IsValid(dtype) && RowOf(dtype)->kind == ElementKind::kSigned;
}
// Bools do not count.
constexpr bool IsInteger(DType dtype) {
  return IsSigned(dtype) || (IsValid(dtype) && RowOf(dtype)->kind == ElementKind::kUnsigned);
}
// f16 and bf16, which are combined in float32.
constexpr bool IsNarrowFloat(DType dtype) { return IsFloat(dtype) && DTypeSize(dtype) == 2; }

// Whether `op` has a meaning for elements of `dtype`.
constexpr bool OpDefined(DType dtype, Op op) {
  if (!IsValid(dtype) || !IsValid(op)) return false;
  const OpRow& row = *RowOf(op);
  return IsFloat(dtype) ? row.floats : IsInteger(dtype) ? row.integers : row.bools;
}

constexpr std::string_view DTypeName(DType dtype) {
  if (dtype == DType::kUnspecified) return "unspecified";
  return IsValid(dtype) ? RowOf(dtype)->name : "invalid";
}
constexpr std::string_view OpName(Op op) {
  if (op == Op::kUnspecified) return "unspecified";
  return IsValid(op) ? RowOf(op)->name : "invalid";
}

// "average is not defined for u8, which has sum, min, max, product, copy, bit_and, bit_or,
// bit_xor". For an `op` that OpDefined refuses, and a valid dtype.
std::string DescribeUndefined(DType dtype, Op op);

}  // namespace talweg

#endif  // TALWEG_LIBS_BASE_DTYPE_H_
