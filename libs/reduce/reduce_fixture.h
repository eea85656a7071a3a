// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_REDUCE_REDUCE_FIXTURE_H_
#define TALWEG_LIBS_REDUCE_REDUCE_FIXTURE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "libs/base/dtype.h"
#include "libs/base/random.h"
#include "libs/reduce/reduce.h"

// Inputs to try kernels with.
namespace talweg::reduce {

inline std::vector<Isa> SupportedIsas() {
  std::vector<Isa> isas;
  for (const Isa isa : kAllIsas) {
    if (IsSupported(isa)) isas.push_back(isa);
  }
  return isas;
}

// Bits that meet each other often enough to matter: quiet and signalling NaNs, infinities, zeros
// and denormals of both signs, the largest numbers, numbers near 1, integers at their limits.
inline uint64_t InterestingBits(DType dtype, Random& random) {
  const uint64_t any = random.Next();
  const uint64_t choice = random.Next() % 4;
  const auto pick = [&](std::initializer_list<uint64_t> values) {
    return values.begin()[any % values.size()];
  };
  switch (dtype) {
    case DType::kF32:
      if (choice == 0) {
        return pick({0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x00800000,
                     0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000,
                     0x7f800001, 0xffbfffff, 0x7fffffff, 0x3f800000, 0xbf800000});
      }
      if (choice == 1) return any & 0xffffffff;
      return 0x3e000000 + (any & 0x81ffffff);
    case DType::kF64:
      if (choice == 0) {
        return pick({0, uint64_t{1} << 63, 1, 0x800fffffffffffff, 0x0010000000000000,
                     0x7fefffffffffffff, 0xffefffffffffffff, 0x7ff0000000000000, 0xfff0000000000000,
                     0x7ff8000000000000, 0xfff8000000000000, 0x7ff0000000000001, 0xfff7ffffffffffff,
                     0x3ff0000000000000});
      }
      if (choice == 1) return any;
      return 0x3fc0000000000000 + (any & 0x803fffffffffffff);
    case DType::kF16:
      if (choice == 0) {
        return pick({0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff, 0x7c00, 0xfc00,
                     0x7e00, 0xfe00, 0x7c01, 0xfdff, 0x7fff, 0x3c00, 0xbc00});
      }
      return choice == 1 ? any & 0xffff : 0x3000 + (any & 0x8fff);
    case DType::kBF16:
      if (choice == 0) {
        return pick({0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x7f7f, 0xff7f, 0x7f80, 0xff80,
                     0x7fc0, 0xffc0, 0x7f81, 0xffbf, 0x7fff, 0x3f80, 0xbf80});
      }
      return choice == 1 ? any & 0xffff : 0x3e00 + (any & 0x81ff);
    default: {
      const int bits = static_cast<int>(DTypeSize(dtype)) * 8;
      const uint64_t mask = ~uint64_t{0} >> (64 - bits);
      if (choice == 0) return pick({0, 1, 2, mask, mask >> 1, (mask >> 1) + 1, mask - 1});
      return any & mask;
    }
  }
}

inline void StoreBits(DType dtype, uint64_t bits, std::byte* to) {
  std::memcpy(to, &bits, DTypeSize(dtype));  // Little-endian, like all hosts here.
}

inline uint64_t LoadBits(DType dtype, const std::byte* from) {
  uint64_t bits = 0;
  std::memcpy(&bits, from, DTypeSize(dtype));
  return bits;
}

}  // namespace talweg::reduce

#endif  // TALWEG_LIBS_REDUCE_REDUCE_FIXTURE_H_
