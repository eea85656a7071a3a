// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_DTYPE_H_
#define TALWEG_LIBS_BASE_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

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
};

// What a round does with its contributions. The values are part of the wire, as above.
enum class Op : uint8_t {
  kUnspecified = 0,
  kSum = 1,
  kAverage = 2,  // The sum divided by the number of ranks that contributed; not for integers.
  kMin = 3,
  kMax = 4,
  kProduct = 5,
  kCopy = 6,  // Bytes of the one rank that gives them, untouched.
};

constexpr bool IsValid(DType dtype) { return dtype >= DType::kF32 && dtype <= DType::kI64; }
constexpr bool IsValid(Op op) { return op >= Op::kSum && op <= Op::kCopy; }

// Bytes of one element; 0 for a value that is no dtype.
constexpr size_t DTypeSize(DType dtype) {
  switch (dtype) {
    case DType::kI8:
    case DType::kU8: return 1;
    case DType::kF16:
    case DType::kBF16: return 2;
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kF64:
    case DType::kI64: return 8;
    case DType::kUnspecified: return 0;
  }
  return 0;
}

constexpr bool IsInteger(DType dtype) { return dtype >= DType::kI8 && dtype <= DType::kI64; }

// Whether `op` has a meaning for elements of `dtype`: everything but the average of integers.
constexpr bool OpDefined(DType dtype, Op op) {
  return IsValid(dtype) && IsValid(op) && !(op == Op::kAverage && IsInteger(dtype));
}

constexpr std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kF64: return "f64";
    case DType::kF16: return "f16";
    case DType::kBF16: return "bf16";
    case DType::kI8: return "i8";
    case DType::kU8: return "u8";
    case DType::kI32: return "i32";
    case DType::kI64: return "i64";
    case DType::kUnspecified: return "unspecified";
  }
  return "invalid";
}

constexpr std::string_view OpName(Op op) {
  switch (op) {
    case Op::kSum: return "sum";
    case Op::kAverage: return "average";
    case Op::kMin: return "min";
    case Op::kMax: return "max";
    case Op::kProduct: return "product";
    case Op::kCopy: return "copy";
    case Op::kUnspecified: return "unspecified";
  }
  return "invalid";
}

}  // namespace talweg

#endif  // TALWEG_LIBS_BASE_DTYPE_H_
