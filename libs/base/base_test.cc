// SPDX-License-Identifier: Apache-2.0
#include <set>

#include <catch2/catch.hpp>

#include "libs/base/awake_time.h"
#include "libs/base/bytes.h"
#include "libs/base/dtype.h"
#include "libs/base/fingerprint.h"
#include "libs/base/ids.h"
#include "libs/base/random.h"

namespace talweg {
namespace {

TEST_CASE("Bytes: sizes are read in powers of 1024 and anything else is refused", "[base]") {
  CHECK(ParseBytes("4096") == 4096);
  CHECK(ParseBytes("64K") == 64 * kKiB);
  CHECK(ParseBytes("4 MiB") == 4 * kMiB);
  CHECK(ParseBytes("2gb") == 2 * kGiB);
  for (const char* bad :
       {"", "K", "4X", "-1", "4KiBs", "99999999999999999999", "99999999999999T"}) {
    CAPTURE(bad);
    CHECK(ParseBytes(bad) == std::nullopt);
  }
  CHECK(FormatBytes(17) == "17 bytes");
  CHECK(FormatBytes(1536) == "1.5 KiB");
  CHECK(FormatBytes(4 * kMiB) == "4 MiB");
}

TEST_CASE("Fingerprint64: fixed for ever, because it is part of the wire", "[base]") {
  CHECK(Fingerprint64("") == 0xc3817c016ba4ff30u);
  CHECK(Fingerprint64("layer1.weight") != Fingerprint64("layer1.weighs"));
}

TEST_CASE("Random: one seed gives one sequence, within bounds", "[base]") {
  Random a(7);
  Random b(7);
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t value = a.Below(10);
    CHECK(value == b.Below(10));
    seen.insert(value);
  }
  CHECK(seen.size() == 10);
  CHECK(*seen.rbegin() == 9);
}

TEST_CASE("AwakeTime: a long gap was a stop, and counts as little of it", "[base]") {
  constexpr int64_t kSecondNs = 1'000'000'000;
  AwakeTime time;
  CHECK(time.Take(7 * kSecondNs) == 0);  // Begin was never called.
  CHECK(time.Take(8 * kSecondNs) == kSecondNs);
  CHECK(time.Take(8 * kSecondNs) == 0);
  CHECK(time.Take(10 * kSecondNs) == 2 * kSecondNs);
  CHECK(time.Take(100 * kSecondNs) == AwakeTime::kGapMaxNs);
  CHECK(time.Take(101 * kSecondNs) == kSecondNs);
  time.Begin(200 * kSecondNs);
  CHECK(time.Take(201 * kSecondNs) == kSecondNs);
}

TEST_CASE("OpDefined: everything but the average of integers", "[base]") {
  CHECK(OpDefined(DType::kBF16, Op::kAverage));
  CHECK_FALSE(OpDefined(DType::kI32, Op::kAverage));
  CHECK(OpDefined(DType::kI32, Op::kSum));
  CHECK_FALSE(OpDefined(DType{99}, Op::kSum));
  CHECK_FALSE(OpDefined(DType::kF32, Op{0}));
}

TEST_CASE("StrongId: ordered, and next is one more", "[base]") {
  CHECK(Epoch{3} < Epoch{4});
  CHECK(Epoch{3}.Next() == Epoch{4});
}

}  // namespace
}  // namespace talweg
