// SPDX-License-Identifier: Apache-2.0
//
// Compares the GPU's kernels, compiled for the host, with the CPU's: they give the same bits for
// the same inputs in the same order. The host cannot check the GPU's own conversion of f16, or its
// additions, products and divisions, which IEEE 754 fixes. libs/gpu/cuda:conformance_test compares
// those on a GPU.
#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/dtype.h"
#include "libs/base/random.h"
#include "libs/gpu/device.h"
#include "libs/gpu/kernels/reduce_plan.h"
#include "libs/reduce/reduce.h"

namespace talweg::gpu {
namespace {

// Returns patterns at the edges of a float format: zeros, denormals, the largest, infinities, NaNs.
uint64_t EdgeOf(int exponent_bits, int fraction_bits, Random& random) {
  const uint64_t one_fraction = (uint64_t{1} << fraction_bits) - 1;
  const uint64_t infinity = ((uint64_t{1} << exponent_bits) - 1) << fraction_bits;
  const uint64_t sign = random.Below(2) << (exponent_bits + fraction_bits);
  switch (random.Below(9)) {
    case 0: return sign;
    case 1: return sign | 1;
    case 2: return sign | one_fraction;
    case 3: return sign | (one_fraction + 1);
    case 4: return sign | (infinity - 1);
    case 5: return sign | infinity;
    case 6: return sign | infinity | 1;                       // A signalling NaN.
    case 7: return sign | infinity | (one_fraction / 2 + 1);  // The quiet one.
    default: return sign | infinity | random.Below(one_fraction) | 1;
  }
}

uint64_t BitsOf(DType dtype, Random& random) {
  const uint64_t any = random.Next();
  const bool edge = random.OneIn(3);
  switch (dtype) {
    case DType::kF32: return edge ? EdgeOf(8, 23, random) : 0x3e000000 + (any & 0x81ffffff);
    case DType::kF64:
      return edge ? EdgeOf(11, 52, random) : 0x3fc0000000000000 + (any & 0x803fffffffffffff);
    case DType::kF16: return edge ? EdgeOf(5, 10, random) : any & 0xffff;
    case DType::kBF16: return edge ? EdgeOf(8, 7, random) : any & 0xffff;
    default: return edge ? ~uint64_t{0} >> random.Below(64) : any;
  }
}

struct Buffers {
  Buffers(DType dtype, size_t input_count, uint64_t element_count, uint64_t skew, Random& random)
      : bytes(element_count * DTypeSize(dtype)) {
    memory.resize(input_count + 1);
    for (size_t i = 0; i <= input_count; ++i) {
      memory[i].resize(bytes / sizeof(uint64_t) + 16);
      // With skew 0 all lie alike. Otherwise each is another number of elements askew.
      begin.push_back(reinterpret_cast<std::byte*>(memory[i].data()) +
                      (skew == 0 ? 0 : (skew + i * (skew - 1)) * DTypeSize(dtype) % 64));
      for (uint64_t e = 0; e < element_count && i < input_count; ++e) {
        const uint64_t bits = BitsOf(dtype, random);
        std::memcpy(begin[i] + e * DTypeSize(dtype), &bits, DTypeSize(dtype));
      }
    }
  }

  std::vector<uint64_t> Addresses() const {
    std::vector<uint64_t> addresses;
    for (size_t i = 0; i + 1 < begin.size(); ++i) {
      addresses.push_back(reinterpret_cast<uint64_t>(begin[i]));
    }
    return addresses;
  }

  uint64_t bytes;
  std::vector<std::vector<uint64_t>> memory;
  std::vector<std::byte*> begin;  // Where the inputs begin, then the output.
};

// Where results go: beside the inputs, to the first one, or to each of them.
enum class Target : uint8_t { kBeside, kFirst, kEach };

// Compares the kernel on the host with libs/reduce. Reports the first difference.
void Compare(DType dtype, Op op, size_t input_count, uint32_t divisor, uint64_t element_count,
             uint64_t skew, Target target, Random& random) {
  Buffers buffers(dtype, input_count, element_count, skew, random);
  std::vector<const std::byte*> inputs(buffers.begin.begin(), buffers.begin.end() - 1);
  std::vector<std::byte> want(buffers.bytes);
  reduce::Reduce({.dtype = dtype, .op = op, .divisor = divisor}, inputs, want.data(),
                 element_count);
  std::vector<std::byte*> outputs = {buffers.begin.back()};
  if (target == Target::kFirst) outputs = {buffers.begin.front()};
  if (target == Target::kEach) outputs = {buffers.begin.begin(), buffers.begin.end() - 1};
  std::vector<uint64_t> addresses;
  for (std::byte* const output : outputs) addresses.push_back(reinterpret_cast<uint64_t>(output));
  const auto plan = kernels::PlanReduce({.dtype = dtype, .op = op, .divisor = divisor},
                                        buffers.Addresses(), addresses, element_count);
  REQUIRE(plan.ok());
  if (skew == 1 && buffers.bytes >= 32) CHECK((plan->is_copy || plan->arguments.vectors > 0));
  kernels::RunOnHost(*plan, 1 + random.Below(70));
  const auto wrong = std::find_if(outputs.begin(), outputs.end(), [&](const std::byte* output) {
    return buffers.bytes > 0 && std::memcmp(output, want.data(), buffers.bytes) != 0;
  });
  if (wrong == outputs.end()) return;
  const std::byte* const output = *wrong;
  size_t e = 0;
  const size_t size = DTypeSize(dtype);
  while (std::memcmp(output + e * size, &want[e * size], size) == 0) ++e;
  uint64_t got_bits = 0;
  uint64_t want_bits = 0;
  std::memcpy(&got_bits, output + e * size, size);
  std::memcpy(&want_bits, &want[e * size], size);
  INFO(DTypeName(dtype) << ' ' << OpName(op) << ", inputs " << input_count << ", divisor "
                        << divisor << ", elements " << element_count << ", skew " << skew
                        << ", output " << wrong - outputs.begin() << " of " << outputs.size()
                        << ": element " << e << " got " << std::hex << got_bits << ", want "
                        << want_bits);
  FAIL();
}

TEST_CASE("kernels: every dtype, op, number of inputs and placement has the CPU's bits", "[gpu]") {
  Random random(1);
  for (const DType dtype : kAllDTypes) {
    for (const Op op : kAllOps) {
      if (!reduce::IsReduction(dtype, op)) continue;
      for (const size_t inputs : {1, 2, 3, 4, 5, 8, 32}) {
        for (const uint64_t elements : {0, 1, 5, 16, 63, 200, 1027}) {
          const uint32_t divisor =
              op == Op::kAverage ? static_cast<uint32_t>(random.Below(2) == 0 ? inputs : 3) : 1;
          for (const uint64_t skew : {0, 1, 2}) {
            const Target target = static_cast<Target>(random.Below(3));
            Compare(dtype, op, inputs, divisor, elements, skew, target, random);
          }
        }
      }
    }
  }
}

TEST_CASE("kernels: averages by any divisor have the CPU's bits", "[gpu]") {
  Random random(2);
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    for (const uint32_t divisor : {1u, 2u, 3u, 7u, 8u, 1000u, 1u << 24, (1u << 24) + 1, 1u << 31}) {
      for (const size_t inputs : {1, 2, 5}) {
        Compare(dtype, Op::kAverage, inputs, divisor, 517, 0, Target::kBeside, random);
      }
    }
  }
}

// Tests each of the 65536 numbers, and each tie between two neighbours. 2^-1 times the sum of both
// is the tie in float32, and an average of two makes it.
TEST_CASE("kernels: all numbers of 16 bits, and all ties between them, have the CPU's bits",
          "[gpu]") {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<uint16_t> all(65536);
    std::vector<uint16_t> next(65536);
    for (size_t i = 0; i < all.size(); ++i) {
      all[i] = static_cast<uint16_t>(i);
      next[i] = static_cast<uint16_t>(i + 1);
    }
    for (const auto& [op, divisor] : {std::pair(Op::kAverage, 2u), std::pair(Op::kAverage, 3u),
                                      std::pair(Op::kMin, 1u), std::pair(Op::kProduct, 1u)}) {
      std::vector<uint16_t> want(all.size());
      std::vector<uint16_t> got(all.size());
      const std::byte* const inputs[] = {reinterpret_cast<const std::byte*>(all.data()),
                                         reinterpret_cast<const std::byte*>(next.data())};
      reduce::Reduce({.dtype = dtype, .op = op, .divisor = divisor}, inputs,
                     reinterpret_cast<std::byte*>(want.data()), all.size());
      const std::vector<uint64_t> addresses = {reinterpret_cast<uint64_t>(all.data()),
                                               reinterpret_cast<uint64_t>(next.data())};
      const auto plan =
          kernels::PlanReduce({.dtype = dtype, .op = op, .divisor = divisor}, addresses,
                              reinterpret_cast<uint64_t>(got.data()), all.size());
      REQUIRE(plan.ok());
      kernels::RunOnHost(*plan, 64);
      CHECK(got == want);
    }
  }
}

TEST_CASE("kernels: a NaN that is copied keeps its payload, and one that is computed does not",
          "[gpu]") {
  const uint32_t signalling = 0xff812345;
  uint32_t output = 0;
  const std::vector<uint64_t> one = {reinterpret_cast<uint64_t>(&signalling)};
  const auto reduce = [&](Op op, uint32_t divisor) {
    const auto plan = kernels::PlanReduce({.dtype = DType::kF32, .op = op, .divisor = divisor}, one,
                                          reinterpret_cast<uint64_t>(&output), 1);
    REQUIRE(plan.ok());
    kernels::RunOnHost(*plan, 1);
    return output;
  };
  CHECK(reduce(Op::kMax, 1) == signalling);
  CHECK(reduce(Op::kAverage, 2) == 0x7fc00000);
}

}  // namespace
}  // namespace talweg::gpu
