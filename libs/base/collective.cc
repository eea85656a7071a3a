// SPDX-License-Identifier: Apache-2.0
#include "libs/base/collective.h"

#include "libs/base/counted.h"
#include "libs/base/signature_text.h"

namespace talweg {

namespace {

// What is left out is added to the next contribution.
bool CanLeaveOut(const Collective& collective) {
  return !collective.side && !collective.copies() && collective.all_get_all() &&
         (collective.op == Op::kSum || collective.op == Op::kAverage) &&
         (collective.dtype == DType::kF32 || collective.dtype == DType::kF64);
}

}  // namespace

std::string Words(const Collective& collective) {
  const std::string op(OpName(collective.op));
  if (collective.copies()) return std::string(collective.name());
  return collective.gets == Share::kWhole ? op : std::string(collective.name()) + " " + op;
}

std::string Describe(const Collective& collective) {
  return std::string(DTypeName(collective.dtype)) + "[" + std::to_string(collective.element_count) +
         "] " + Words(collective) + (collective.side ? " side tensor" : "") +
         (collective.encodes() ? " encoded as " + std::string(EncodingName(collective.encoding))
                               : "") +
         (collective.leaves_out()
              ? " that waits " + std::to_string(collective.patience_ms) + " ms for late ranks"
              : "");
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
  if (!IsValid(collective.encoding)) {
    return "there is no encoding " + std::to_string(static_cast<int>(collective.encoding));
  }
  if (Rounds(collective.encoding) &&
      (collective.dtype != DType::kF32 ||
       (collective.op != Op::kSum && collective.op != Op::kAverage))) {
    return "the encoding " + std::string(EncodingName(collective.encoding)) +
           " rounds, and is for sums and averages of f32, not for " +
           std::string(DTypeName(collective.dtype)) + " " + std::string(OpName(collective.op));
  }
  const std::string name(collective.name());
  if (collective.copies() != (collective.op == Op::kCopy)) {
    return collective.copies() ? name + " copies, and has no " + std::string(OpName(collective.op))
                               : name + " combines, and cannot copy";
  }
  if (collective.leaves_out() && !CanLeaveOut(collective)) {
    return std::string(DTypeName(collective.dtype)) + " " + Words(collective) +
           (collective.side ? " side tensor" : "") +
           " cannot leave late ranks out; sums and averages of f32 and f64 to all ranks can";
  }
  if (collective.side && (collective.needs_every_rank() || !collective.all_get_all())) {
    return name + " cannot be a side tensor; all_reduce and broadcast can";
  }
  if (!OpDefined(collective.dtype, collective.op)) {
    return DescribeUndefined(collective.dtype, collective.op);
  }
  return "";
}

std::string DescribeSignature(RoundSignature signature) {
  char text[kSignatureTextBytes];
  PrintSignature(signature, text, sizeof(text));
  return text;
}

std::string DescribeGiven(RoundSignature signature, std::optional<uint64_t> length_bytes) {
  const std::string words = DescribeSignature(signature);
  if (!length_bytes) return words.empty() ? "what it does not name" : words;
  return (words.empty() ? "" : words + ", ") + Counted(*length_bytes, "byte");
}

}  // namespace talweg
