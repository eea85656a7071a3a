// SPDX-License-Identifier: Apache-2.0
#include "libs/reduce/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "libs/base/check.h"
#include "libs/reduce/kernel_table.h"

namespace talweg::reduce {
namespace {

using internal::Combine;
using internal::Kernel;
using internal::KernelTable;

// Sets round to nearest, denormals kept and no traps, whatever the calling thread or a library of
// the process has set.
class DefaultFloatingPoint {
 public:
#if defined(__x86_64__)
  DefaultFloatingPoint() : saved_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~DefaultFloatingPoint() { _mm_setcsr(saved_); }

 private:
  static constexpr unsigned kDefault = 0x1f80;  // The value at a process's start.
  unsigned saved_;
#else
  DefaultFloatingPoint() = default;
  ~DefaultFloatingPoint() = default;
#endif

 public:
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;
};

const KernelTable& KernelsOf(Isa isa) {
  switch (isa) {
    case Isa::kPortable: return internal::kPortableKernels;
#if defined(__x86_64__)
    case Isa::kAvx2: return internal::kAvx2Kernels;
    case Isa::kAvx512: return internal::kAvx512Kernels;
#else
    case Isa::kAvx2:
    case Isa::kAvx512: break;
#endif
  }
  TALWEG_CHECK(!"an instruction set that this build has");
  return internal::kPortableKernels;
}

static_assert(internal::kDTypeCount == std::size(kDTypeRows));

Kernel KernelOf(Isa isa, DType dtype, Combine combine) {
  const Kernel kernel =
      KernelsOf(isa).kernels[static_cast<size_t>(dtype) - 1][static_cast<size_t>(combine)];
  TALWEG_CHECK(kernel != nullptr);
  return kernel;
}

struct Scaling {
  Combine combine;
  double scale;
};

// Dividing by a power of two and multiplying by its inverse round to the same number. The bits are
// the same, and a division costs several times as much.
Scaling ScalingOfAverage(const ReduceSpec& spec, bool weighted) {
  if (weighted) return {Combine::kWeightedSumOver, static_cast<double>(spec.divisor)};
  if (spec.divisor == 1) return {Combine::kSum, 1.0};
  if (std::has_single_bit(spec.divisor)) {
    return {Combine::kSumTimes, 1.0 / static_cast<double>(spec.divisor)};
  }
  return {Combine::kSumOver, static_cast<double>(spec.divisor)};
}

Scaling ScalingOf(const ReduceSpec& spec, bool weighted) {
  switch (spec.op) {
    case Op::kAverage: return ScalingOfAverage(spec, weighted);
    case Op::kMin: return {Combine::kMin, 1.0};
    case Op::kMax: return {Combine::kMax, 1.0};
    case Op::kProduct: return {Combine::kProduct, 1.0};
    case Op::kBitAnd: return {Combine::kBitAnd, 1.0};
    case Op::kBitOr: return {Combine::kBitOr, 1.0};
    case Op::kBitXor: return {Combine::kBitXor, 1.0};
    case Op::kSum:
    case Op::kUnspecified:
    case Op::kCopy: break;
  }
  return {Combine::kSum, 1.0};
}

bool Overlap(const std::byte* a, const std::byte* b, size_t bytes) {
  const uintptr_t from = reinterpret_cast<uintptr_t>(a);
  const uintptr_t to = reinterpret_cast<uintptr_t>(b);
  return from < to + bytes && to < from + bytes;
}

}  // namespace

ReduceSpec FirstHop(DType dtype, Op op, uint32_t rank_count) {
  if (op != Op::kAverage) return {.dtype = dtype, .op = op};
  if (IsNarrowFloat(dtype)) return {.dtype = dtype, .op = op, .divisor = rank_count};
  return {.dtype = dtype, .op = Op::kSum};
}

ReduceSpec LastHop(DType dtype, Op op, std::span<const float> rank_counts,
                   uint32_t rank_count_total) {
  if (op != Op::kAverage) return {.dtype = dtype, .op = op};
  if (IsNarrowFloat(dtype)) {
    if (rank_counts.size() == 1)
      return {.dtype = dtype, .op = op};  // Already the mean of all ranks.
    return {.dtype = dtype, .op = op, .weights = rank_counts, .divisor = rank_count_total};
  }
  return {.dtype = dtype, .op = op, .divisor = rank_count_total};
}

ReduceSpec OnlyHop(DType dtype, Op op, uint32_t rank_count) {
  if (op != Op::kAverage) return {.dtype = dtype, .op = op};
  return {.dtype = dtype, .op = op, .divisor = rank_count};
}

void Reduce(const ReduceSpec& spec, std::span<const std::byte* const> inputs, std::byte* output,
            size_t element_count, Isa isa) {
  TALWEG_CHECK(IsReduction(spec.dtype, spec.op));
  TALWEG_CHECK(!inputs.empty());
  TALWEG_CHECK(spec.weights.empty() || spec.weights.size() == inputs.size());
  TALWEG_CHECK(spec.op == Op::kAverage || (spec.weights.empty() && spec.divisor == 1));
  TALWEG_CHECK(spec.divisor >= 1);
  TALWEG_CHECK(IsSupported(isa));
  const size_t bytes = element_count * DTypeSize(spec.dtype);
  if (bytes == 0) return;
  const bool in_place = inputs[0] == output;
  for (size_t i = in_place ? 1 : 0; i < inputs.size(); ++i) {
    TALWEG_CHECK(!Overlap(inputs[i], output, bytes));
  }

  // Weights of 1 multiply nothing.
  const bool weighted =
      std::any_of(spec.weights.begin(), spec.weights.end(), [](float w) { return w != 1.0f; });
  if (inputs.size() == 1 && !weighted && spec.divisor == 1) {
    if (!in_place) std::memcpy(output, inputs[0], bytes);
    return;
  }

  const Scaling scaling = ScalingOf(spec, weighted);
  const bool streaming =
      spec.stores == Stores::kStreaming ||
      (spec.stores == Stores::kAutomatic && !in_place && bytes >= kStreamingBytesMin);
  const Kernel kernel = KernelOf(isa, spec.dtype, scaling.combine);
  const DefaultFloatingPoint default_floating_point;
  kernel({.inputs = inputs.data(),
          .input_count = inputs.size(),
          .output = output,
          .bytes = bytes,
          .weights = spec.weights.data(),
          .scale = scaling.scale,
          .scale_is_small = spec.divisor < 1 << 16,
          .streaming = streaming});
}

void Scale(DType dtype, double factor, const std::byte* in, std::byte* out, size_t element_count,
           Isa isa) {
  TALWEG_CHECK(IsScalable(dtype));
  TALWEG_CHECK(IsSupported(isa));
  const size_t bytes = element_count * DTypeSize(dtype);
  if (bytes == 0) return;
  TALWEG_CHECK(in == out || !Overlap(in, out, bytes));
  if (factor == 1.0) {
    if (in != out) std::memcpy(out, in, bytes);
    return;
  }
  const Kernel kernel = KernelOf(isa, dtype, Combine::kScale);
  const DefaultFloatingPoint default_floating_point;
  kernel({.inputs = &in,
          .input_count = 1,
          .output = out,
          .bytes = bytes,
          .weights = nullptr,
          .scale = factor,
          .scale_is_small = false,
          .streaming = false});
}

}  // namespace talweg::reduce
