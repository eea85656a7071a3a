// SPDX-License-Identifier: Apache-2.0
#include "libs/base/collective.h"

#include "libs/base/signature_text.h"

namespace talweg {
namespace {

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
    return std::string(OpName(collective.op)) + " is not defined for " +
           std::string(DTypeName(collective.dtype)) + ": sum, or use a floating-point type";
  }
  return "";
}

std::string DescribeSignature(RoundSignature signature) {
  char text[kSignatureTextBytes];
  PrintSignature(signature, text, sizeof(text));
  return text;
}

}  // namespace talweg
