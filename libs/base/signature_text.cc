// SPDX-License-Identifier: Apache-2.0
#include "libs/base/signature_text.h"

#include <cstdio>

namespace talweg {
namespace {

constexpr int kDTypeShift = 56;
constexpr int kOpShift = 48;
constexpr int kGivesShift = 44;
constexpr int kGetsShift = 40;
// A rank that has joined signs so in a round that needs every rank
// (clients/python/talweg/_joining.py). No collective has this signature.
constexpr RoundSignature kJoined = 0x6A6F696E6564;

Collective CollectiveOf(RoundSignature signature) {
  return {.dtype = static_cast<DType>(signature >> kDTypeShift & 0xff),
          .op = static_cast<Op>(signature >> kOpShift & 0xff),
          .gives = static_cast<Share>(signature >> kGivesShift & 0xf),
          .gets = static_cast<Share>(signature >> kGetsShift & 0xf),
          .element_count = signature & kSignatureElementsMax};
}

}  // namespace

RoundSignature SignatureOf(const Collective& collective, uint64_t element_count) {
  return uint64_t{static_cast<uint8_t>(collective.dtype)} << kDTypeShift |
         uint64_t{static_cast<uint8_t>(collective.op)} << kOpShift |
         uint64_t{static_cast<uint8_t>(collective.gives)} << kGivesShift |
         uint64_t{static_cast<uint8_t>(collective.gets)} << kGetsShift |
         (element_count & kSignatureElementsMax);
}

void PrintSignature(RoundSignature signature, char* out, size_t bytes_max) {
  out[0] = '\0';
  if (signature == 0) return;
  if (signature == kJoined) {
    std::snprintf(out, bytes_max, "nothing, since it has joined (hvd.join())");
    return;
  }
  const Collective collective = CollectiveOf(signature);
  const auto length = [](std::string_view text) { return static_cast<int>(text.size()); };
  const bool has_rows = collective.needs_every_rank();
  const bool is_all_reduce = !collective.copies() && collective.gets == Share::kWhole;
  const std::string_view dtype = DTypeName(collective.dtype);
  const std::string_view name = is_all_reduce ? "" : collective.name();
  const std::string_view op = collective.copies() ? "" : OpName(collective.op);
  const auto count = static_cast<unsigned long long>(collective.element_count);
  char shape[32] = "";
  if (!has_rows) std::snprintf(shape, sizeof(shape), "[%llu]", count);
  char rows[40] = "";
  if (has_rows) std::snprintf(rows, sizeof(rows), ", rows of %llu", count);
  std::snprintf(out, bytes_max, "%.*s%s %.*s%s%.*s%s", length(dtype), dtype.data(), shape,
                length(name), name.data(), name.empty() || op.empty() ? "" : " ", length(op),
                op.data(), rows);
}

}  // namespace talweg
