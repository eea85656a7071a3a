// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/daemon/declaration.h"

#include <array>

#include "libs/base/bytes.h"
#include "libs/base/dtype.h"

namespace talweg::shm {
namespace {

constexpr uint64_t kTensorBytesMax = 16 * kGiB;

bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = lead < 0x80           ? 1
                          : (lead >> 5) == 0x06 ? 2
                          : (lead >> 4) == 0x0e ? 3
                          : (lead >> 3) == 0x1e ? 4
                                                : 0;
    if (length == 0 || i + length > text.size()) return false;
    uint32_t point = length == 1 ? lead : lead & (0x7fu >> length);
    for (size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if ((next & 0xc0) != 0x80) return false;
      point = (point << 6) | (next & 0x3f);
    }
    constexpr std::array<uint32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
    if (point < kSmallest[length] || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff)) {
      return false;
    }
    i += length;
  }
  return true;
}

}  // namespace

std::string DeclarationError(const Declare& declare, uint32_t job_size) {
  if (declare.name.empty()) return "a tensor's name must not be empty";
  if (declare.name.find('\0') != std::string_view::npos || !IsUtf8(declare.name)) {
    return "a tensor's name is not UTF-8 without NUL";
  }
  const std::string tensor = "tensor '" + std::string(declare.name) + "': ";
  if (!IsValid(declare.dtype)) {
    return tensor + std::to_string(static_cast<int>(declare.dtype)) + " is no dtype";
  }
  if (!IsValid(declare.op)) {
    return tensor + std::to_string(static_cast<int>(declare.op)) + " is no operation";
  }
  if (!OpDefined(declare.dtype, declare.op)) {
    return tensor + DescribeUndefined(declare.dtype, declare.op);
  }
  if (declare.element_count == 0) return tensor + "it has no elements";
  if (declare.element_count > kTensorBytesMax / DTypeSize(declare.dtype)) {
    return tensor + std::to_string(declare.element_count) + " elements of " +
           std::string(DTypeName(declare.dtype)) + " pass the limit of " +
           FormatBytes(kTensorBytesMax) + " a tensor; cut it into several";
  }
  if (declare.op == Op::kCopy && declare.root_rank >= job_size) {
    return tensor + "root rank " + std::to_string(declare.root_rank) +
           " does not exist: the job has " + std::to_string(job_size) + " ranks";
  }
  return "";
}

std::string Printable(std::string_view text) {
  if (!IsUtf8(text)) return "?";
  std::string out(text);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return out;
}

}  // namespace talweg::shm
