// SPDX-License-Identifier: Apache-2.0
#include "libs/reduce/scalar_reference.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace talweg::reduce::testing {
namespace {

int Bias(Format16 format) { return (1 << (format.exponent_bits - 1)) - 1; }
int SmallestExponent(Format16 format) { return 1 - Bias(format); }
int LargestExponent(Format16 format) { return Bias(format); }

template <class Float>
Float Minimum(Float a, Float b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<Float>::quiet_NaN();
  if (a == b) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}

template <class Float>
Float Maximum(Float a, Float b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<Float>::quiet_NaN();
  if (a == b) return std::signbit(a) ? b : a;
  return a < b ? b : a;
}

template <class Float>
Float ReduceFloats(Op op, const std::vector<Float>& inputs, const std::vector<float>& weights,
                   uint32_t divisor) {
  Float result = inputs[0];
  if (!weights.empty()) result = result * static_cast<Float>(weights[0]);
  for (size_t i = 1; i < inputs.size(); ++i) {
    switch (op) {
      case Op::kMin: result = Minimum(result, inputs[i]); break;
      case Op::kMax: result = Maximum(result, inputs[i]); break;
      case Op::kProduct: result = result * inputs[i]; break;
      default: {
        Float addend = inputs[i];
        if (!weights.empty()) addend = addend * static_cast<Float>(weights[i]);
        result = result + addend;
        break;
      }
    }
  }
  if (divisor != 1) result = result / static_cast<Float>(divisor);
  return std::isnan(result) ? std::numeric_limits<Float>::quiet_NaN() : result;
}

unsigned __int128 Modulus(DType dtype) {
  return static_cast<unsigned __int128>(1) << (DTypeSize(dtype) * 8);
}

// Returns the integer, or bool, of an element's bits.
__int128 IntegerOf(DType dtype, uint64_t bits) {
  const __int128 value = bits;
  const __int128 modulus = static_cast<__int128>(Modulus(dtype));
  return IsSigned(dtype) && value >= modulus / 2 ? value - modulus : value;
}

// Combines bit by bit: `becomes` has the results for 0 and 0, 0 and 1, 1 and 0, 1 and 1.
uint64_t ByBits(uint64_t a, uint64_t b, const std::array<uint64_t, 4>& becomes) {
  uint64_t result = 0;
  for (int bit = 0; bit < 64; ++bit) {
    result |= becomes[(a >> bit & 1) * 2 + (b >> bit & 1)] << bit;
  }
  return result;
}

// Wraps by arithmetic in 128 bits, modulo 2^bits.
uint64_t ReduceIntegers(DType dtype, Op op, const std::vector<uint64_t>& inputs) {
  const unsigned __int128 modulus = Modulus(dtype);
  const auto value_of = [&](uint64_t bits) { return IntegerOf(dtype, bits); };
  uint64_t result = inputs[0];
  for (size_t i = 1; i < inputs.size(); ++i) {
    const unsigned __int128 a = result;
    const unsigned __int128 b = inputs[i];
    switch (op) {
      case Op::kMin: result = value_of(inputs[i]) < value_of(result) ? inputs[i] : result; break;
      case Op::kMax: result = value_of(inputs[i]) > value_of(result) ? inputs[i] : result; break;
      case Op::kProduct: result = static_cast<uint64_t>((a * b) % modulus); break;
      case Op::kBitAnd: result = ByBits(result, inputs[i], {0, 0, 0, 1}); break;
      case Op::kBitOr: result = ByBits(result, inputs[i], {0, 1, 1, 1}); break;
      case Op::kBitXor: result = ByBits(result, inputs[i], {0, 1, 1, 0}); break;
      default: result = static_cast<uint64_t>((a + b) % modulus); break;
    }
  }
  return result;
}

uint64_t ScaleInteger(DType dtype, double factor, uint64_t bits) {
  const int value_bits = static_cast<int>(DTypeSize(dtype)) * 8 - (IsSigned(dtype) ? 1 : 0);
  const double beyond = std::ldexp(1, value_bits);
  const double below = IsSigned(dtype) ? -beyond : 0;
  const double scaled = std::trunc(static_cast<double>(IntegerOf(dtype, bits)) * factor);
  const uint64_t greatest = ~uint64_t{0} >> (64 - value_bits);
  const uint64_t mask = static_cast<uint64_t>(Modulus(dtype) - 1);
  if (std::isnan(scaled)) return 0;
  if (scaled >= beyond) return greatest;
  if (scaled <= below) return IsSigned(dtype) ? (greatest ^ mask) : 0;
  return static_cast<uint64_t>(static_cast<__int128>(scaled)) & mask;
}

}  // namespace

float Decode(Format16 format, uint16_t bits) {
  const bool negative = (bits & 0x8000) != 0;
  const int fraction = bits & ((1 << format.fraction_bits) - 1);
  const int exponent = (bits & 0x7fff) >> format.fraction_bits;
  double magnitude = 0;
  if (exponent == (1 << format.exponent_bits) - 1) {
    magnitude = fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                              : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    magnitude = std::ldexp(fraction, SmallestExponent(format) - format.fraction_bits);
  } else {
    magnitude = std::ldexp((1 << format.fraction_bits) + fraction,
                           exponent - Bias(format) - format.fraction_bits);
  }
  return static_cast<float>(negative ? -magnitude : magnitude);
}

uint16_t Encode(Format16 format, float value) {
  const int infinity = ((1 << format.exponent_bits) - 1) << format.fraction_bits;
  if (std::isnan(value)) return static_cast<uint16_t>(infinity | 1 << (format.fraction_bits - 1));
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isinf(magnitude)) return static_cast<uint16_t>(sign | infinity);
  int exponent = SmallestExponent(format);
  if (magnitude > 0) exponent = std::max(exponent, std::ilogb(magnitude));
  // In units of the last place; nearbyint rounds ties to even, and all of this is exact.
  double units = std::nearbyint(std::ldexp(magnitude, format.fraction_bits - exponent));
  if (units == std::ldexp(1, format.fraction_bits + 1)) {
    units /= 2;
    ++exponent;
  }
  if (exponent > LargestExponent(format)) return static_cast<uint16_t>(sign | infinity);
  const int fraction = static_cast<int>(units);
  if (fraction < (1 << format.fraction_bits)) return static_cast<uint16_t>(sign | fraction);
  return static_cast<uint16_t>(sign | (exponent + Bias(format)) << format.fraction_bits |
                               (fraction - (1 << format.fraction_bits)));
}

uint64_t ReduceElement(DType dtype, Op op, const std::vector<uint64_t>& inputs,
                       const std::vector<float>& weights, uint32_t divisor) {
  if (!IsFloat(dtype)) return ReduceIntegers(dtype, op, inputs);
  if (dtype == DType::kF64) {
    std::vector<double> values;
    values.reserve(inputs.size());
    for (const uint64_t bits : inputs) values.push_back(std::bit_cast<double>(bits));
    return std::bit_cast<uint64_t>(ReduceFloats(op, values, weights, divisor));
  }
  const Format16 format = dtype == DType::kF16 ? kBinary16 : kBFloat16;
  std::vector<float> values;
  values.reserve(inputs.size());
  for (const uint64_t bits : inputs) {
    values.push_back(dtype == DType::kF32 ? std::bit_cast<float>(static_cast<uint32_t>(bits))
                                          : Decode(format, static_cast<uint16_t>(bits)));
  }
  const float result = ReduceFloats(op, values, weights, divisor);
  return dtype == DType::kF32 ? std::bit_cast<uint32_t>(result) : Encode(format, result);
}

uint64_t ScaleElement(DType dtype, double factor, uint64_t bits) {
  if (IsInteger(dtype)) return ScaleInteger(dtype, factor, bits);
  // A product of two floats follows the rules of a reduction.
  const float narrow = static_cast<float>(factor);
  if (dtype == DType::kF64) {
    return ReduceElement(dtype, Op::kProduct, {bits, std::bit_cast<uint64_t>(factor)}, {}, 1);
  }
  if (dtype == DType::kF32) {
    return ReduceElement(dtype, Op::kProduct, {bits, std::bit_cast<uint32_t>(narrow)}, {}, 1);
  }
  const Format16 format = dtype == DType::kF16 ? kBinary16 : kBFloat16;
  return Encode(format, Decode(format, static_cast<uint16_t>(bits)) * narrow);
}

}  // namespace talweg::reduce::testing
