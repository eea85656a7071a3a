// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_REDUCE_REDUCE_H_
#define TALWEG_LIBS_REDUCE_REDUCE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "libs/base/dtype.h"
#include "libs/reduce/isa.h"

// Sums (averages, minima, maxima, products, bitwise and, or, xor) several inputs, element by
// element, in one pass; and multiplies one input by a number. docs/arithmetic.md has the rules with
// their reasons; in short, for each element:
//
//   - The inputs x0, x1, x2, ... are combined as ((x0 op x1) op x2) op ..., in the given order.
//   - f32 and f64 are combined in their own type. f16 and bf16 are widened to float32, combined
//     there over all inputs, and rounded once, to nearest, ties to even. Integers wrap.
//   - A computed NaN is always the one quiet NaN 0x7fc00000, 0x7ff8000000000000, 0x7e00 or 0x7fc0.
//     A NaN among the inputs of kMin and kMax makes the result NaN. -0 is less than +0.
//   - Denormals are kept, even if the calling thread has asked its processor to flush them.
//
// The bits of a result therefore depend only on the inputs and their order: not on the instruction
// set, on any alignment, on how the elements are cut into calls, or on `stores`.
//
// Thread-safe: no state. Nothing here blocks or allocates.
namespace talweg::reduce {

// How the output is written: the same bits, at other costs (docs/arithmetic.md).
enum class Stores : uint8_t {
  kAutomatic,  // kStreaming from kStreamingBytesMin on unless the output is an input, else kCached.
  kCached,     // Through the caches: the output is read again soon (sent, taken), or is small.
  kStreaming,  // Around the caches: the output is large and will not be read soon.
};

// An output of this size would displace other data from the cache.
inline constexpr size_t kStreamingBytesMin = size_t{32} << 20;

struct ReduceSpec {
  DType dtype = DType::kUnspecified;
  Op op = Op::kUnspecified;

  // kAverage of a float type only: the output is
  //
  //   (weights[0] * x0 + weights[1] * x1 + ...) / divisor
  //
  // in the type in which the elements are combined: each product, each addition and the division is
  // rounded. No weights: each is 1, and nothing is multiplied. The divisor is converted to that
  // type first (exact up to 2^24), and is at least 1. All other ops have no weights and divisor 1.
  std::span<const float> weights;  // Borrowed during the call; none, or one for each input.
  uint32_t divisor = 1;

  Stores stores = Stores::kAutomatic;
};

// Whether Reduce supports (dtype, op): all that OpDefined allows, except copies. Check this before
// anything from outside becomes a ReduceSpec.
constexpr bool IsReduction(DType dtype, Op op) { return OpDefined(dtype, op) && op != Op::kCopy; }

// An average takes two hops: an agent combines its ranks, and an aggregator combines the agents. An
// f32 or f64 contribution is the sum over its ranks, and the last hop divides by all ranks. An f16
// or bf16 contribution is the mean of its ranks, so that it fits wherever the average fits, and the
// last hop weights it by the number of ranks. These two functions make the hops' specs, for other
// ops as well.
ReduceSpec FirstHop(DType dtype, Op op, uint32_t rank_count);
// `rank_counts`: of each contribution, in the order of the inputs; the result borrows them.
// `rank_count_total`: their sum.
ReduceSpec LastHop(DType dtype, Op op, std::span<const float> rank_counts,
                   uint32_t rank_count_total);
// For an agent that serves a whole job: both hops in one, with the same bits as FirstHop and then
// LastHop of one contribution.
ReduceSpec OnlyHop(DType dtype, Op op, uint32_t rank_count);

// Combines `element_count` elements of each input into `output`. Any alignment. `output` may be
// inputs[0] (in place), and otherwise overlaps no input; the same input may occur several times. A
// single input without weights and with divisor 1 is copied, NaNs untouched. `isa` is for tests and
// benchmarks.
//
// CHECKs: IsReduction; at least one input; weights and divisor as ReduceSpec says; no overlap;
// `isa` is supported.
void Reduce(const ReduceSpec& spec, std::span<const std::byte* const> inputs, std::byte* output,
            size_t element_count, Isa isa = BestIsa());

// Whether Scale supports the dtype: floats and integers. Check this for a dtype from outside.
constexpr bool IsScalable(DType dtype) { return IsFloat(dtype) || IsInteger(dtype); }

// Multiplies each element of `in` by `factor` into `out`, which may be `in` and otherwise does not
// overlap it.
//
//   - f32 and f64: in their own type, which `factor` is rounded to first.
//   - f16 and bf16: in float32, as f32; then rounded to 16 bits.
//   - Integers: in double, to which 64-bit integers are rounded first. The product is rounded
//     toward zero; a product beyond the type's range becomes its least or greatest number. NaN (an
//     infinite factor times 0, or a NaN factor) becomes 0.
//
// A factor of 1 copies: not one bit changes. Otherwise NaNs, zeros and denormals are treated as in
// Reduce, and a result depends only on the element and the factor.
//
// CHECKs: IsScalable; no overlap; `isa` is supported.
void Scale(DType dtype, double factor, const std::byte* in, std::byte* out, size_t element_count,
           Isa isa = BestIsa());

}  // namespace talweg::reduce

#endif  // TALWEG_LIBS_REDUCE_REDUCE_H_
