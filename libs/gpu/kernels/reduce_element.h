// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_KERNELS_REDUCE_ELEMENT_H_
#define TALWEG_LIBS_GPU_KERNELS_REDUCE_ELEMENT_H_

#include <cstdint>
#include <cstring>

#include "libs/gpu/kernels/reduce_arguments.h"

// The reduction kernels, for a GPU (nvcc) and for the host (any compiler, without contraction of
// products and sums). It is one source, so that the host's tests cover what the GPU runs. The
// differences stand under __CUDA_ARCH__: the conversions of f16, and the names of the instructions
// that round to nearest and are never fused.
//
// The rules are those of docs/arithmetic.md. Nothing here depends on which thread takes an element.
#if defined(__CUDACC__)
#define TALWEG_HD __host__ __device__ __forceinline__
#define TALWEG_UNROLL _Pragma("unroll")
#else
#define TALWEG_HD inline
#define TALWEG_UNROLL
#endif

namespace talweg::gpu::kernels {

template <class To, class From>
TALWEG_HD To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

// ----- Arithmetic of one lane. -----

TALWEG_HD float Add(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
TALWEG_HD double Add(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}
TALWEG_HD float Times(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
TALWEG_HD double Times(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
TALWEG_HD float Over(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}
TALWEG_HD double Over(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __ddiv_rn(a, b);
#else
  return a / b;
#endif
}
// Integers wrap: without a sign, which changes no bit of a sum or a product. Small ones are
// multiplied as unsigned ints: as ints, 65535 * 65535 would not fit.
template <class T>
TALWEG_HD T Add(T a, T b) {
  return static_cast<T>(a + b);
}
template <class T>
TALWEG_HD T Times(T a, T b) {
  return static_cast<T>(1u * a * b);
}

TALWEG_HD bool IsNan(float x) { return (BitCast<uint32_t>(x) & 0x7fffffffu) > 0x7f800000u; }
TALWEG_HD bool IsNan(double x) {
  return (BitCast<uint64_t>(x) & 0x7fffffffffffffffu) > 0x7ff0000000000000u;
}
TALWEG_HD float OneNan(float x) { return IsNan(x) ? BitCast<float>(0x7fc00000u) : x; }
TALWEG_HD double OneNan(double x) {
  return IsNan(x) ? BitCast<double>(uint64_t{0x7ff8000000000000u}) : x;
}
template <class T>
TALWEG_HD T OneNan(T x) {
  return x;  // Integers.
}

// A NaN on either side gives the one NaN, and -0 is less than +0. Equal numbers differ only in
// their sign, so the lesser zero is the bitwise OR of the two patterns, and the greater the AND.
template <class Float, class Bits>
TALWEG_HD Float LesserFloat(Float a, Float b, Bits nan) {
  if (IsNan(a) || IsNan(b)) return BitCast<Float>(nan);
  if (a == b) return BitCast<Float>(static_cast<Bits>(BitCast<Bits>(a) | BitCast<Bits>(b)));
  return a < b ? a : b;
}
template <class Float, class Bits>
TALWEG_HD Float GreaterFloat(Float a, Float b, Bits nan) {
  if (IsNan(a) || IsNan(b)) return BitCast<Float>(nan);
  if (a == b) return BitCast<Float>(static_cast<Bits>(BitCast<Bits>(a) & BitCast<Bits>(b)));
  return a < b ? b : a;
}
TALWEG_HD float Lesser(float a, float b) { return LesserFloat(a, b, uint32_t{0x7fc00000}); }
TALWEG_HD float Greater(float a, float b) { return GreaterFloat(a, b, uint32_t{0x7fc00000}); }
TALWEG_HD double Lesser(double a, double b) {
  return LesserFloat(a, b, uint64_t{0x7ff8000000000000});
}
TALWEG_HD double Greater(double a, double b) {
  return GreaterFloat(a, b, uint64_t{0x7ff8000000000000});
}
template <class T>
TALWEG_HD T Lesser(T a, T b) {
  return a < b ? a : b;
}
template <class T>
TALWEG_HD T Greater(T a, T b) {
  return a < b ? b : a;
}

// ----- Numbers of 16 bits. -----

TALWEG_HD float FromF16(uint16_t bits) {
#if defined(__CUDA_ARCH__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0) {  // In units of 2^-24, exactly.
    const float magnitude = static_cast<float>(fraction) * BitCast<float>(0x33800000u);
    return BitCast<float>(sign | BitCast<uint32_t>(magnitude));
  }
  if (exponent == 0x1f) return BitCast<float>(sign | 0x7f800000u | fraction << 13);
  return BitCast<float>(sign | (exponent + 112) << 23 | fraction << 13);
#endif
}

// Rounds to nearest, ties to even. `value` is no NaN but the one.
TALWEG_HD uint16_t ToF16(float value) {
  if (IsNan(value)) return 0x7e00;  // A GPU's own conversion has another one.
#if defined(__CUDA_ARCH__)
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
#else
  const uint32_t bits = BitCast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half = 0;
  if (magnitude >= 0x477ff000u) {  // From 65520 on.
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    // Below 2^-14. The last place of 1/2 is a denormal's unit, so the addition rounds there.
    half = BitCast<uint32_t>(BitCast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
#endif
}

TALWEG_HD float FromBF16(uint16_t bits) {
  return BitCast<float>(static_cast<uint32_t>(bits) << 16);
}
// Rounds to nearest, ties to even. A carry makes the next exponent, or infinity. `value` is no NaN
// but the one, which has no low bits.
TALWEG_HD uint16_t ToBF16(float value) {
  const uint32_t bits = BitCast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// ----- Elements: how they lie in memory, and as what they are combined. -----

template <class T>
struct Plain {
  using Stored = T;
  using Lane = T;
  TALWEG_HD static Lane Unpack(Stored stored) { return stored; }
  TALWEG_HD static Stored Pack(Lane lane) { return lane; }
};
struct F16 {
  using Stored = uint16_t;
  using Lane = float;
  TALWEG_HD static Lane Unpack(Stored stored) { return FromF16(stored); }
  TALWEG_HD static Stored Pack(Lane lane) { return ToF16(lane); }
};
struct BF16 {
  using Stored = uint16_t;
  using Lane = float;
  TALWEG_HD static Lane Unpack(Stored stored) { return FromBF16(stored); }
  TALWEG_HD static Stored Pack(Lane lane) { return ToBF16(lane); }
};

// ----- Operations. -----

template <Combine kCombine, class Lane>
TALWEG_HD Lane Next(Lane combined, Lane x) {
  if constexpr (kCombine == Combine::kMin) {
    return Lesser(combined, x);
  } else if constexpr (kCombine == Combine::kMax) {
    return Greater(combined, x);
  } else if constexpr (kCombine == Combine::kProduct) {
    return Times(combined, x);
  } else if constexpr (kCombine == Combine::kBitAnd) {
    return static_cast<Lane>(combined & x);
  } else if constexpr (kCombine == Combine::kBitOr) {
    return static_cast<Lane>(combined | x);
  } else if constexpr (kCombine == Combine::kBitXor) {
    return static_cast<Lane>(combined ^ x);
  } else {
    return Add(combined, x);
  }
}

template <Combine kCombine, class Lane>
TALWEG_HD Lane Last(Lane combined, Lane scale) {
  if constexpr (kCombine == Combine::kSumTimes) {
    return OneNan(Times(combined, scale));
  } else if constexpr (kCombine == Combine::kSumOver) {
    return OneNan(Over(combined, scale));
  } else {
    return OneNan(combined);
  }
}

// ----- One kernel: what thread number `thread` of `thread_count` does. -----

template <class E, Combine kCombine>
struct Kernel {
  using Stored = typename E::Stored;
  using Lane = typename E::Lane;
  static constexpr uint32_t kLanes = kVectorBytes / sizeof(Stored);
  // How many vectors of an input a thread loads at once: enough to hide the memory's latency, few
  // enough for its registers.
  static constexpr uint32_t kUnroll = kLanes <= 4 ? 4 : 2;

  struct alignas(kVectorBytes) Vector {
    Stored lanes[kLanes];
  };

  // A fixed number of inputs lets loads of all of them be in flight at once.
  TALWEG_HD static void Run(const ReduceArguments& arguments, uint64_t thread,
                            uint64_t thread_count) {
    switch (arguments.input_count) {
      case 2: Vectors<2>(arguments, thread, thread_count); break;
      case 3: Vectors<3>(arguments, thread, thread_count); break;
      case 4: Vectors<4>(arguments, thread, thread_count); break;
      default: Vectors<0>(arguments, thread, thread_count); break;
    }
    Elements(arguments, thread, thread_count);
  }

  template <uint32_t kInputs>
  TALWEG_HD static void Vectors(const ReduceArguments& arguments, uint64_t thread,
                                uint64_t thread_count) {
    const Lane scale = static_cast<Lane>(arguments.scale);
    const uint32_t input_count = kInputs == 0 ? arguments.input_count : kInputs;
    for (uint64_t first = thread; first < arguments.vectors; first += thread_count * kUnroll) {
      Lane lanes[kUnroll][kLanes];
      if constexpr (kInputs != 0) {
        Vector loaded[kInputs][kUnroll];
        TALWEG_UNROLL
        for (uint32_t i = 0; i < kInputs; ++i) Load(arguments, i, first, thread_count, loaded[i]);
        First(loaded[0], lanes);
        TALWEG_UNROLL
        for (uint32_t i = 1; i < kInputs; ++i) Add1(loaded[i], lanes);
      } else {
        Vector loaded[kUnroll];
        Load(arguments, 0, first, thread_count, loaded);
        First(loaded, lanes);
        for (uint32_t i = 1; i < input_count; ++i) {
          Load(arguments, i, first, thread_count, loaded);
          Add1(loaded, lanes);
        }
      }
      // Stored after all loads of these elements, because an output may be an input.
      Vector results[kUnroll];
      TALWEG_UNROLL
      for (uint32_t u = 0; u < kUnroll; ++u) {
        TALWEG_UNROLL
        for (uint32_t l = 0; l < kLanes; ++l) {
          results[u].lanes[l] = E::Pack(Last<kCombine>(lanes[u][l], scale));
        }
      }
      for (uint32_t o = 0; o < arguments.output_count; ++o) {
        Vector* const output = reinterpret_cast<Vector*>(
            static_cast<uintptr_t>(arguments.outputs[o] + arguments.head * sizeof(Stored)));
        TALWEG_UNROLL
        for (uint32_t u = 0; u < kUnroll; ++u) {
          const uint64_t at = first + u * thread_count;
          if (at < arguments.vectors) StoreVector(output + at, results[u]);
        }
      }
    }
  }

  // Takes the elements before the first vector and after the last.
  TALWEG_HD static void Elements(const ReduceArguments& arguments, uint64_t thread,
                                 uint64_t thread_count) {
    const Lane scale = static_cast<Lane>(arguments.scale);
    const uint64_t in_vectors = arguments.vectors * kLanes;
    for (uint64_t i = thread; i < arguments.element_count - in_vectors; i += thread_count) {
      const uint64_t at = i < arguments.head ? i : i + in_vectors;
      Lane lane = E::Unpack(Element(arguments.inputs[0], at));
      for (uint32_t input = 1; input < arguments.input_count; ++input) {
        lane = Next<kCombine>(lane, E::Unpack(Element(arguments.inputs[input], at)));
      }
      const Stored result = E::Pack(Last<kCombine>(lane, scale));
      for (uint32_t o = 0; o < arguments.output_count; ++o) {
        reinterpret_cast<Stored*>(static_cast<uintptr_t>(arguments.outputs[o]))[at] = result;
      }
    }
  }

  TALWEG_HD static Stored Element(uint64_t input, uint64_t at) {
    return reinterpret_cast<const Stored*>(static_cast<uintptr_t>(input))[at];
  }

  // Loads in one piece, past the L1 cache, which is of no use to data that is touched once.
  TALWEG_HD static Vector LoadVector(const Vector* from) {
#if defined(__CUDA_ARCH__)
    const uint4 words = __ldcg(reinterpret_cast<const uint4*>(from));
    Vector vector;
    memcpy(&vector, &words, sizeof(vector));
    return vector;
#else
    return *from;
#endif
  }
  TALWEG_HD static void StoreVector(Vector* to, const Vector& vector) {
#if defined(__CUDA_ARCH__)
    uint4 words;
    memcpy(&words, &vector, sizeof(words));
    __stcg(reinterpret_cast<uint4*>(to), words);
#else
    *to = vector;
#endif
  }

  TALWEG_HD static void Load(const ReduceArguments& arguments, uint32_t input, uint64_t first,
                             uint64_t thread_count, Vector (&loaded)[kUnroll]) {
    const Vector* const from = reinterpret_cast<const Vector*>(
        static_cast<uintptr_t>(arguments.inputs[input] + arguments.head * sizeof(Stored)));
    TALWEG_UNROLL
    for (uint32_t u = 0; u < kUnroll; ++u) {
      const uint64_t at = first + u * thread_count;
      loaded[u] = LoadVector(from + (at < arguments.vectors ? at : first));
    }
  }

  TALWEG_HD static void First(const Vector (&loaded)[kUnroll], Lane (&lanes)[kUnroll][kLanes]) {
    TALWEG_UNROLL
    for (uint32_t u = 0; u < kUnroll; ++u) {
      TALWEG_UNROLL
      for (uint32_t l = 0; l < kLanes; ++l) lanes[u][l] = E::Unpack(loaded[u].lanes[l]);
    }
  }

  TALWEG_HD static void Add1(const Vector (&loaded)[kUnroll], Lane (&lanes)[kUnroll][kLanes]) {
    TALWEG_UNROLL
    for (uint32_t u = 0; u < kUnroll; ++u) {
      TALWEG_UNROLL
      for (uint32_t l = 0; l < kLanes; ++l) {
        lanes[u][l] = Next<kCombine>(lanes[u][l], E::Unpack(loaded[u].lanes[l]));
      }
    }
  }
};

// All kernels: X(dtype's name, combination's name, element, Combine). Only minima and maxima differ
// between signed and unsigned integers: PlanReduce chooses the kernel of a dtype.
#define TALWEG_GPU_FLOAT_KERNELS(X, name, element) \
  X(name, sum, element, Combine::kSum)             \
  X(name, sum_times, element, Combine::kSumTimes)  \
  X(name, sum_over, element, Combine::kSumOver)    \
  X(name, min, element, Combine::kMin)             \
  X(name, max, element, Combine::kMax)             \
  X(name, product, element, Combine::kProduct)
#define TALWEG_GPU_END_KERNELS(X, name, element) \
  X(name, min, element, Combine::kMin)           \
  X(name, max, element, Combine::kMax)
#define TALWEG_GPU_UNSIGNED_KERNELS(X, name, element) \
  TALWEG_GPU_END_KERNELS(X, name, element)            \
  X(name, sum, element, Combine::kSum)                \
  X(name, product, element, Combine::kProduct)        \
  X(name, bit_and, element, Combine::kBitAnd)         \
  X(name, bit_or, element, Combine::kBitOr)           \
  X(name, bit_xor, element, Combine::kBitXor)
#define TALWEG_GPU_ALL_KERNELS(X)                      \
  TALWEG_GPU_FLOAT_KERNELS(X, f32, Plain<float>)       \
  TALWEG_GPU_FLOAT_KERNELS(X, f64, Plain<double>)      \
  TALWEG_GPU_FLOAT_KERNELS(X, f16, F16)                \
  TALWEG_GPU_FLOAT_KERNELS(X, bf16, BF16)              \
  TALWEG_GPU_UNSIGNED_KERNELS(X, u8, Plain<uint8_t>)   \
  TALWEG_GPU_UNSIGNED_KERNELS(X, u16, Plain<uint16_t>) \
  TALWEG_GPU_UNSIGNED_KERNELS(X, u32, Plain<uint32_t>) \
  TALWEG_GPU_UNSIGNED_KERNELS(X, u64, Plain<uint64_t>) \
  TALWEG_GPU_END_KERNELS(X, i8, Plain<int8_t>)         \
  TALWEG_GPU_END_KERNELS(X, i16, Plain<int16_t>)       \
  TALWEG_GPU_END_KERNELS(X, i32, Plain<int32_t>)       \
  TALWEG_GPU_END_KERNELS(X, i64, Plain<int64_t>)

}  // namespace talweg::gpu::kernels

#endif  // TALWEG_LIBS_GPU_KERNELS_REDUCE_ELEMENT_H_
