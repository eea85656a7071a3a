// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/kernels/reduce_plan.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/gpu/kernels/image.h"

namespace talweg::gpu::kernels {
namespace {

using Catch::Matchers::Contains;

constexpr ReduceSpec kSumF32 = {.dtype = DType::kF32, .op = Op::kSum};

std::string ErrorOf(const ReduceSpec& spec, const std::vector<uint64_t>& inputs,
                    const std::vector<uint64_t>& outputs, uint64_t element_count) {
  const auto plan = PlanReduce(spec, inputs, outputs, element_count);
  REQUIRE_FALSE(plan.ok());
  CHECK(absl::IsInvalidArgument(plan.status()));
  return std::string(plan.status().message());
}

TEST_CASE(
    "PlanReduce: vectors cover what lies alike in all buffers, single elements cover the rest",
    "[gpu]") {
  const std::vector<uint64_t> inputs = {0x1004, 0x2014};
  const auto plan = PlanReduce(kSumF32, inputs, 0x3024, 100);
  REQUIRE(plan.ok());
  CHECK(plan->bytes == 400);
  CHECK_FALSE(plan->is_copy);
  CHECK(plan->arguments.head == 3);
  CHECK(plan->arguments.vectors == 24);  // 3 + 24 * 4 = 99, and one element after them.
  CHECK(plan->arguments.element_count == 100);
  CHECK(plan->arguments.input_count == 2);
}

TEST_CASE("PlanReduce: buffers that are short, or do not lie alike, have no vectors", "[gpu]") {
  const std::vector<uint64_t> askew = {0x1000, 0x2004};
  const auto plan = PlanReduce(kSumF32, askew, 0x3000, 100);
  REQUIRE(plan.ok());
  CHECK(plan->arguments.vectors == 0);
  CHECK(plan->arguments.head == 100);
  const std::vector<uint64_t> alike = {0x1004, 0x2004};
  const auto brief = PlanReduce(kSumF32, alike, 0x3004, 3);
  REQUIRE(brief.ok());
  CHECK(brief->arguments.vectors == 0);
  CHECK(brief->arguments.head == 3);
}

TEST_CASE("PlanReduce: outputs may be inputs, and lie alike with them", "[gpu]") {
  const std::vector<uint64_t> two = {0x1000, 0x2000};
  const auto in_place = PlanReduce(kSumF32, two, two, 100);
  REQUIRE(in_place.ok());
  CHECK(in_place->arguments.output_count == 2);
  CHECK(in_place->arguments.outputs[1] == 0x2000);
  CHECK(in_place->arguments.vectors == 25);
  const std::vector<uint64_t> askew = {0x2000, 0x3004};
  CHECK(PlanReduce(kSumF32, two, askew, 100)->arguments.vectors == 0);
}

TEST_CASE("PlanReduce: an average is a sum, times a power of two or over any other divisor",
          "[gpu]") {
  const std::vector<uint64_t> inputs = {0x1000, 0x2000};
  const auto combine_of = [&](uint32_t divisor) {
    const auto plan = PlanReduce({.dtype = DType::kBF16, .op = Op::kAverage, .divisor = divisor},
                                 inputs, 0x3000, 8);
    REQUIRE(plan.ok());
    return std::pair(plan->combine, plan->arguments.scale);
  };
  CHECK(combine_of(1) == std::pair(Combine::kSum, 1.0));
  CHECK(combine_of(4) == std::pair(Combine::kSumTimes, 0.25));
  CHECK(combine_of(6) == std::pair(Combine::kSumOver, 6.0));
  CHECK(KernelName(DType::kBF16, Combine::kSumOver) == "talweg_reduce_bf16_sum_over");
}

TEST_CASE("PlanReduce: integers of one size share a kernel where the sign does not matter",
          "[gpu]") {
  const std::vector<uint64_t> inputs = {0x1000, 0x2000};
  const auto dtype_of = [&](DType dtype, Op op) {
    const auto plan = PlanReduce({.dtype = dtype, .op = op}, inputs, 0x3000, 8);
    REQUIRE(plan.ok());
    return plan->dtype;
  };
  CHECK(dtype_of(DType::kI16, Op::kSum) == DType::kU16);
  CHECK(dtype_of(DType::kI64, Op::kBitXor) == DType::kU64);
  CHECK(dtype_of(DType::kI32, Op::kMin) == DType::kI32);
  CHECK(dtype_of(DType::kU32, Op::kMin) == DType::kU32);
  CHECK(dtype_of(DType::kBool, Op::kMax) == DType::kU8);
  CHECK(dtype_of(DType::kBF16, Op::kSum) == DType::kBF16);
}

TEST_CASE("PlanReduce: every dtype and op that is a reduction has a kernel", "[gpu]") {
  const std::vector<uint64_t> inputs = {0x1000, 0x2000};
  const std::vector<std::string> names = KernelNames();
  for (const DType dtype : kAllDTypes) {
    for (const Op op : kAllOps) {
      if (!OpDefined(dtype, op) || op == Op::kCopy) continue;
      const auto plan = PlanReduce({.dtype = dtype, .op = op}, inputs, 0x3000, 8);
      REQUIRE(plan.ok());
      CHECK_THAT(names, Catch::Matchers::VectorContains(KernelName(plan->dtype, plan->combine)));
    }
  }
}

TEST_CASE("PlanReduce: one input that nothing scales is a copy", "[gpu]") {
  const std::vector<uint64_t> one = {0x1000};
  CHECK(PlanReduce(kSumF32, one, 0x3000, 8)->is_copy);
  CHECK(PlanReduce(kSumF32, one, 0x1000, 8)->is_copy);
  CHECK_FALSE(PlanReduce({.dtype = DType::kF32, .op = Op::kAverage, .divisor = 2}, one, 0x1000, 8)
                  ->is_copy);
  CHECK(PlanReduce(kSumF32, one, 0x3000, 0)->bytes == 0);
}

TEST_CASE("PlanReduce: a plan that cannot be made is refused with the reason", "[gpu]") {
  const std::vector<uint64_t> two = {0x1000, 0x2000};
  CHECK_THAT(ErrorOf({.dtype = DType::kI32, .op = Op::kAverage}, two, {0x3000}, 8),
             Contains("i32, average") && Contains("not defined"));
  CHECK_THAT(ErrorOf({.dtype = DType::kF32, .op = Op::kCopy}, two, {0x3000}, 8),
             Contains("not defined"));
  CHECK_THAT(ErrorOf({.dtype = static_cast<DType>(77), .op = Op::kSum}, two, {0x3000}, 8),
             Contains("not defined"));
  CHECK_THAT(ErrorOf({.dtype = DType::kF32, .op = Op::kSum, .divisor = 2}, two, {0x3000}, 8),
             Contains("divided by 2"));
  CHECK_THAT(ErrorOf({.dtype = DType::kF32, .op = Op::kAverage, .divisor = 0}, two, {0x3000}, 8),
             Contains("divided by 0"));
  CHECK_THAT(ErrorOf(kSumF32, {}, {0x3000}, 8), Contains("1 to 32 inputs"));
  CHECK_THAT(ErrorOf(kSumF32, std::vector<uint64_t>(33, 0x1000), {0x3000}, 8),
             Contains("33 inputs"));
  CHECK_THAT(ErrorOf(kSumF32, two, {0x3002}, 8), Contains("0x3002") && Contains("4 bytes"));
  CHECK_THAT(ErrorOf(kSumF32, {0x1001, 0x2000}, {0x3000}, 8), Contains("0x1001"));
  CHECK_THAT(ErrorOf(kSumF32, two, {0x1010}, 8), Contains("input 0 overlaps output 0"));
  CHECK_THAT(ErrorOf(kSumF32, two, {0x1000, 0x2010}, 8), Contains("input 1 overlaps output 1"));
  CHECK_THAT(ErrorOf(kSumF32, {0x1000, 0x1000}, {0x1000}, 8), Contains("one input, whole"));
  CHECK_THAT(ErrorOf(kSumF32, two, {0x3000, 0x3010}, 8), Contains("outputs 0 and 1 overlap"));
  CHECK_THAT(ErrorOf(kSumF32, two, {}, 8), Contains("0 outputs"));
  CHECK_THAT(ErrorOf(kSumF32, two, std::vector<uint64_t>(33, 0x3000), 8), Contains("33 outputs"));
  CHECK_THAT(ErrorOf(kSumF32, two, {0x3000}, UINT64_MAX / 2), Contains("elements"));
  CHECK_THAT(ErrorOf(kSumF32, two, {UINT64_MAX - 3}, 8), Contains("at address"));
}

TEST_CASE("Image: the build says whether it has kernels", "[gpu]") {
#if defined(TALWEG_WITH_CUDA)
  REQUIRE(Image().size() > 1000);
  // The first word of a fatbin.
  CHECK(Image()[0] == std::byte{0x50});
  CHECK(Image()[3] == std::byte{0xba});
#else
  CHECK(Image().empty());
#endif
}

}  // namespace
}  // namespace talweg::gpu::kernels
