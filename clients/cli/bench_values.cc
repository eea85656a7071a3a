// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/bench_values.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "libs/base/dtype.h"

namespace talweg::cli {
namespace {

constexpr uint64_t kNumberMax = 127;  // Every dtype that has sums holds it exactly.

// IEEE binary16 of a whole number below 2048: its leading bit is implied by the exponent.
uint16_t HalfOf(uint64_t number) {
  if (number == 0) return 0;
  const int exponent = std::bit_width(number) - 1;
  const uint64_t fraction = (number << 10 >> exponent) & 0x3ff;
  return static_cast<uint16_t>((static_cast<uint64_t>(exponent + 15) << 10) | fraction);
}

template <typename T>
std::string BytesOf(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string ElementOf(talweg_dtype dtype, uint64_t number) {
  switch (dtype) {
    case TALWEG_F32: return BytesOf(static_cast<float>(number));
    case TALWEG_F64: return BytesOf(static_cast<double>(number));
    case TALWEG_F16: return BytesOf(HalfOf(number));
    case TALWEG_BF16:
      return BytesOf(
          static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(number)) >> 16));
    default: break;
  }
  // These are the low bytes of an integer.
  return BytesOf(number).substr(0, talweg_dtype_bytes(dtype));
}

// Whether `bytes` are an f32 that rounding may have made of `number`.
bool IsNearly(uint64_t number, const std::string& bytes) {
  float found = 0;
  std::memcpy(&found, bytes.data(), sizeof found);
  return std::abs(found - static_cast<float>(number)) * 32 <= static_cast<float>(number);
}

bool CanBeSummed(DType dtype) { return OpDefined(dtype, Op::kSum); }

}  // namespace

absl::StatusOr<talweg_dtype> ParseDType(const std::string& text) {
  for (const DType dtype : kAllDTypes) {
    if (CanBeSummed(dtype) && text == DTypeName(dtype)) return static_cast<talweg_dtype>(dtype);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is not a dtype that can be summed; allowed: ", DTypeNames()));
}

std::string DTypeNames() {
  std::string names;
  for (const DType dtype : kAllDTypes) {
    if (!CanBeSummed(dtype)) continue;
    absl::StrAppend(&names, names.empty() ? "" : ", ", std::string(DTypeName(dtype)));
  }
  return names;
}

void FillWith(talweg_dtype dtype, uint64_t number, std::span<char> data) {
  const std::string element = ElementOf(dtype, number);
  for (size_t at = 0; at + element.size() <= data.size(); at += element.size()) {
    std::memcpy(&data[at], element.data(), element.size());
  }
}

absl::Status CheckHolds(talweg_dtype dtype, uint64_t number, std::span<const char> data) {
  if (number > kNumberMax) return absl::OkStatus();
  const std::string element = ElementOf(dtype, number);
  const size_t count = data.size() / element.size();
  const char* const encoding = std::getenv("TALWEG_ENCODING");
  const bool may_be_rounded = dtype == TALWEG_F32 && encoding != nullptr && *encoding != '\0';
  for (const size_t index : {size_t{0}, count / 2, count - 1}) {
    const std::string found(&data[index * element.size()], element.size());
    if (found == element || (may_be_rounded && IsNearly(number, found))) continue;
    return absl::DataLossError(absl::StrCat(
        "element ", index, " of the result has the bytes ", absl::BytesToHexString(found),
        ", but the sum over all ranks is ", number, ": ", absl::BytesToHexString(element)));
  }
  return absl::OkStatus();
}

}  // namespace talweg::cli
