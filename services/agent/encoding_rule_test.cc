// SPDX-License-Identifier: Apache-2.0
#include "services/agent/encoding_rule.h"

#include <catch2/catch.hpp>

namespace talweg::agent {
namespace {

constexpr EncodingRule kRule = {.encoding = Encoding::kInt8, .bytes_min = 4096};

Encoding Chosen(const Collective& collective) { return kRule.Apply(collective).encoding; }

TEST_CASE("EncodingRule: large sums and averages of f32 travel encoded", "[agent]") {
  CHECK(Chosen(Collective::Of(DType::kF32, Op::kSum, 1024)) == Encoding::kInt8);
  CHECK(Chosen(Collective::Of(DType::kF32, Op::kAverage, 1024)) == Encoding::kInt8);
  Collective scattered = Collective::Of(DType::kF32, Op::kSum, 1024);
  scattered.gets = Share::kOwn;
  CHECK(Chosen(scattered) == Encoding::kInt8);
}

TEST_CASE("EncodingRule: all else travels as it is", "[agent]") {
  CHECK(Chosen(Collective::Of(DType::kF32, Op::kSum, 1023)) == Encoding::kPlain);
  CHECK(Chosen(Collective::Of(DType::kF32, Op::kMax, 1024)) == Encoding::kPlain);
  CHECK(Chosen(Collective::Of(DType::kF32, Op::kCopy, 1024)) == Encoding::kPlain);
  CHECK(Chosen(Collective::Of(DType::kBF16, Op::kSum, 4096)) == Encoding::kPlain);
  CHECK(Chosen(Collective::Of(DType::kI64, Op::kSum, 4096)) == Encoding::kPlain);
  Collective side = Collective::Of(DType::kF32, Op::kSum, 1024);
  side.side = true;
  CHECK(Chosen(side) == Encoding::kPlain);
  Collective asked = Collective::Of(DType::kF32, Op::kSum, 1024);
  asked.encoding = Encoding::kRuns;
  CHECK(Chosen(asked) == Encoding::kRuns);
  const Collective sum = Collective::Of(DType::kF32, Op::kSum, 1024);
  CHECK(EncodingRule{}.Apply(sum) == sum);
}

}  // namespace
}  // namespace talweg::agent
