// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_COMPRESS_COMPRESS_H_
#define TALWEG_LIBS_COMPRESS_COMPRESS_H_

#include <cstdint>

#include "libs/reduce/isa.h"

// Makes a gradient cheap to send, before its rank pushes it: most numbers become zeros, or few
// values are left. What is taken away can be remembered, and is added to the next gradient.
namespace talweg::compress {

// Values are part of the C ABI.
enum class Kind : uint8_t {
  kTopK = 1,       // The k numbers of largest magnitude stay; the first of equal ones.
  kRandomK = 2,    // k numbers stay, at places that `key` alone decides.
  kOneBit = 3,     // Each becomes `scale` or -`scale`; a zero counts as positive.
  kDithering = 4,  // Each becomes one of 2 k + 1 levels, rounded up or down at random.
};

struct Spec {
  Kind kind = Kind::kTopK;
  // kTopK, kRandomK: below 1 a part of each partition, at least one number; otherwise a number of
  // numbers of each partition. kDithering: the levels above zero.
  double k = 0;
  uint64_t partition = 0;  // A partition's elements: each is compressed alone. 0: all are one.
  uint64_t key = 0;        // kRandomK, kDithering: equal keys draw equal numbers.
  bool scaling = false;    // kOneBit: `scale` is the mean of the magnitudes. Otherwise it is 1.
  bool natural = false;    // kDithering: levels are powers of two. Otherwise all are equally far.
  bool l2 = false;         // kDithering: the top level is the L2 norm. Otherwise the maximum norm.
};

inline constexpr uint32_t kLevelsMax = 127;        // So a partition has at most 255 values.
inline constexpr uint32_t kNaturalLevelsMax = 31;  // The levels are 2^-30 to 1 of the norm.

// What a tensor's compressor remembers from one gradient to the next. Each array has an element for
// each of the gradient, and begins as zeros. It holds finite numbers only: what would not be finite
// becomes 0.
struct Memory {
  float* error = nullptr;     // What was taken away. Null: it is not remembered.
  float error_scale = 1;      // The factor for `error`: the last learning rate over this one.
  float* momentum = nullptr;  // Null: no momentum.
  float mu = 0;               // The factor for `momentum`.
};

// Whether Compress() takes it.
bool IsValid(const Spec& spec);

// Compresses `count` values v in place, in f32 and in this order:
//
//   m = mu * m + v,  p = v + mu * m     if there is momentum; else p = v
//   p = p + error_scale * e             if there is an error memory
//   values = C(p),  e = p - values
//
// A number of p that is not finite stays as it is, whatever C is, and so does no harm to the
// others: norms and means are of the finite ones. The bits of the outcome depend on what is given
// alone. `spec` is valid. No array overlaps another.
void Compress(const Spec& spec, float* values, uint64_t count, const Memory& memory,
              reduce::Isa isa = reduce::BestIsa());

}  // namespace talweg::compress

#endif  // TALWEG_LIBS_COMPRESS_COMPRESS_H_
