// SPDX-License-Identifier: Apache-2.0
#include "libs/base/signature_text.h"

#include <algorithm>
#include <cstdio>

namespace talweg {
namespace {

constexpr int kDTypeShift = 56;
constexpr int kOpShift = 48;
constexpr int kGivesShift = 44;
constexpr int kGetsShift = 40;
// A rank that has no more data signs with this in a round that needs every rank
// (clients/python/talweg/_joining.py). No collective has this signature.
constexpr RoundSignature kJoined = 0x6A6F696E6564;
// Shapes (clients/python/talweg/_declaration.py). No dtype has these numbers.
constexpr uint64_t kShape = 0xFE;
constexpr uint64_t kShapeDigest = 0xFF;
constexpr int kDimensionsShift = 52;  // The dimensions are below, the last one in the lowest bits.

Collective CollectiveOf(RoundSignature signature) {
  return {.dtype = static_cast<DType>(signature >> kDTypeShift & 0xff),
          .op = static_cast<Op>(signature >> kOpShift & 0xff),
          .gives = static_cast<Share>(signature >> kGivesShift & 0xf),
          .gets = static_cast<Share>(signature >> kGetsShift & 0xf),
          .element_count = signature & kSignatureElementsMax};
}

// "shape [2, 6]".
void PrintShape(RoundSignature signature, char* out, size_t bytes_max) {
  const auto count = static_cast<int>(signature >> kDimensionsShift & 0xf);
  const int bits = count == 0 ? 0 : kDimensionsShift / count;
  size_t at = 0;
  const auto print = [&](const char* format, unsigned long long length) {
    const int written = std::snprintf(out + at, bytes_max - at, format, length);
    at = std::min(bytes_max - 1, at + static_cast<size_t>(std::max(written, 0)));
  };
  print("shape [", 0);
  for (int i = count - 1; i >= 0; --i) {
    print(i > 0 ? "%llu, " : "%llu", signature >> (i * bits) & ((uint64_t{1} << bits) - 1));
  }
  print("]", 0);
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
  if (signature == kFitsAll) {
    std::snprintf(out, bytes_max, "zeros, since it has joined (hvd.join())");
    return;
  }
  if (signature >> kDTypeShift == kShape) return PrintShape(signature, out, bytes_max);
  if (signature >> kDTypeShift == kShapeDigest) {
    std::snprintf(out, bytes_max, "a shape with digest %014llx",
                  static_cast<unsigned long long>(signature & ~(kShapeDigest << kDTypeShift)));
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
