// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <cstring>

#include "clients/c/abi.h"
#include "clients/c/talweg_exchange.h"
#include "libs/compress/compress.h"

namespace {

using talweg::c::Invalid;
namespace compress = talweg::compress;

static_assert(TALWEG_TOP_K == static_cast<int>(compress::Kind::kTopK));
static_assert(TALWEG_RANDOM_K == static_cast<int>(compress::Kind::kRandomK));
static_assert(TALWEG_ONE_BIT == static_cast<int>(compress::Kind::kOneBit));
static_assert(TALWEG_DITHERING == static_cast<int>(compress::Kind::kDithering));

compress::Kind KindOf(const talweg_compression& compression) {
  uint32_t number = 0;  // A C program may have set it to any value.
  static_assert(sizeof number == sizeof compression.compressor);
  std::memcpy(&number, &compression.compressor, sizeof number);
  return static_cast<compress::Kind>(number > 0xff ? 0 : number);
}

}  // namespace

extern "C" talweg_status talweg_compress(const talweg_compression* compression, float* values,
                                         float* error, float* momentum, uint64_t count) {
  if (compression == nullptr || compression->struct_bytes < sizeof(talweg_compression)) {
    return Invalid("talweg_compress: `compression` is NULL, or struct_bytes is not set");
  }
  const compress::Spec spec = {
      .kind = KindOf(*compression),
      .k = compression->k,
      .partition = compression->partition,
      .key = compression->key,
      .scaling = (compression->flags & TALWEG_COMPRESS_SCALING) != 0,
      .natural = (compression->flags & TALWEG_COMPRESS_NATURAL) != 0,
      .l2 = (compression->flags & TALWEG_COMPRESS_L2) != 0,
  };
  if (!compress::IsValid(spec)) {
    return Invalid(
        "talweg_compress: there is no such compressor, or its `k` is out of range: above 0 for "
        "top_k and random_k, whole numbers from 1 to 127 (natural: 31) for dithering");
  }
  if (values == nullptr && count > 0) return Invalid("talweg_compress: `values` is NULL");
  if (!std::isfinite(compression->error_scale) || !std::isfinite(compression->mu)) {
    return Invalid("talweg_compress: `error_scale` or `mu` is not finite");
  }
  compress::Compress(spec, values, count,
                     {.error = error,
                      .error_scale = compression->error_scale,
                      .momentum = momentum,
                      .mu = compression->mu});
  return TALWEG_OK;
}
