// SPDX-License-Identifier: Apache-2.0
#include "libs/base/collective.h"

namespace talweg {
namespace {

constexpr int kDTypeShift = 56;
constexpr int kOpShift = 48;
constexpr int kGivesShift = 44;
constexpr int kGetsShift = 40;

// "all_reduce sum", "all_gather".
std::string Words(const Collective& collective) {
  std::string words(collective.name());
  if (!collective.copies()) words += " " + std::string(OpName(collective.op));
  return words;
}

}  // namespace

std::string Describe(const Collective& collective) {
  return Words(collective) + " " + std::string(DTypeName(collective.dtype)) + "[" +
         std::to_string(collective.element_count) + "]";
}

std::string Problem(const Collective& collective) {
  if (!IsValid(collective.dtype)) {
    return "there is no dtype " + std::to_string(static_cast<int>(collective.dtype));
  }
  if (!IsValid(collective.op)) {
    return "there is no operation " + std::to_string(static_cast<int>(collective.op));
  }
  if (collective.row() == nullptr) {
    return "there is no collective that gives " +
           std::to_string(static_cast<int>(collective.gives)) + " and gets " +
           std::to_string(static_cast<int>(collective.gets));
  }
  const std::string name(collective.name());
  if (collective.copies() != (collective.op == Op::kCopy)) {
    return collective.copies() ? name + " copies, and has no " + std::string(OpName(collective.op))
                               : name + " combines, and cannot copy";
  }
  if (!OpDefined(collective.dtype, collective.op)) {
    return DescribeUndefined(collective.dtype, collective.op);
  }
  return "";
}

RoundSignature SignatureOf(const Collective& collective, uint64_t element_count) {
  return uint64_t{static_cast<uint8_t>(collective.dtype)} << kDTypeShift |
         uint64_t{static_cast<uint8_t>(collective.op)} << kOpShift |
         uint64_t{static_cast<uint8_t>(collective.gives)} << kGivesShift |
         uint64_t{static_cast<uint8_t>(collective.gets)} << kGetsShift |
         (element_count & kSignatureElementsMax);
}

std::string DescribeSignature(RoundSignature signature) {
  if (signature == 0) return "";
  const Collective collective = {
      .dtype = static_cast<DType>(signature >> kDTypeShift & 0xff),
      .op = static_cast<Op>(signature >> kOpShift & 0xff),
      .gives = static_cast<Share>(signature >> kGivesShift & 0xf),
      .gets = static_cast<Share>(signature >> kGetsShift & 0xf),
      .element_count = signature & kSignatureElementsMax};
  if (!collective.needs_every_rank()) return Describe(collective);
  return Words(collective) + " " + std::string(DTypeName(collective.dtype)) + ", rows of " +
         std::to_string(collective.element_count);
}

}  // namespace talweg
