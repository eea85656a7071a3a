// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <set>
#include <string>

#include <catch2/catch.hpp>

#include "libs/base/awake_time.h"
#include "libs/base/bytes.h"
#include "libs/base/collective.h"
#include "libs/base/counted.h"
#include "libs/base/dealing.h"
#include "libs/base/descriptor.h"
#include "libs/base/dtype.h"
#include "libs/base/fingerprint.h"
#include "libs/base/ids.h"
#include "libs/base/random.h"
#include "libs/base/read_at_most.h"
#include "libs/base/shown_address.h"
#include "libs/base/signature_text.h"

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

TEST_CASE("Counted: a noun with its number", "[base]") {
  CHECK(Counted(0, "member") == "0 members");
  CHECK(Counted(1, "member") == "1 member");
  CHECK(Counted(2, "member") == "2 members");
}

TEST_CASE("Fingerprint64: it never changes, because it is part of the wire", "[base]") {
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

TEST_CASE("AwakeTime: a long gap was a stop, and only a little of it counts", "[base]") {
  constexpr int64_t kSecondNs = 1'000'000'000;
  AwakeTime time;
  CHECK(time.Take(7 * kSecondNs) == 0);  // Begin was not called.
  CHECK(time.Take(8 * kSecondNs) == kSecondNs);
  CHECK(time.Take(8 * kSecondNs) == 0);
  CHECK(time.Take(10 * kSecondNs) == 2 * kSecondNs);
  CHECK(time.Take(100 * kSecondNs) == AwakeTime::kGapMaxNs);
  CHECK(time.Take(101 * kSecondNs) == kSecondNs);
  time.Begin(200 * kSecondNs);
  CHECK(time.Take(201 * kSecondNs) == kSecondNs);
}

TEST_CASE("OpDefined: bools have no arithmetic, floats no bitwise operations, integers no averages",
          "[base]") {
  for (const DTypeRow& row : kDTypeRows) {
    const DType dtype = row.dtype;
    INFO(row.name);
    CHECK(OpDefined(dtype, Op::kSum) == (dtype != DType::kBool));
    CHECK(OpDefined(dtype, Op::kProduct) == (dtype != DType::kBool));
    CHECK(OpDefined(dtype, Op::kAverage) == IsFloat(dtype));
    for (const Op op : {Op::kMin, Op::kMax, Op::kCopy}) CHECK(OpDefined(dtype, op));
    for (const Op op : {Op::kBitAnd, Op::kBitOr, Op::kBitXor}) {
      CHECK(OpDefined(dtype, op) == !IsFloat(dtype));
    }
  }
  CHECK_FALSE(OpDefined(DType{99}, Op::kSum));
  CHECK_FALSE(OpDefined(DType::kUnspecified, Op::kCopy));
  CHECK_FALSE(OpDefined(DType::kF32, Op{0}));
  CHECK_FALSE(OpDefined(DType::kF32, Op{10}));
  CHECK(DescribeUndefined(DType::kBool, Op::kSum) ==
        "sum is not defined for bool, which has min, max, copy, bit_and, bit_or, bit_xor");
}

TEST_CASE("DType: a number is a float or an integer, with or without a sign", "[base]") {
  CHECK(IsNarrowFloat(DType::kBF16));
  CHECK_FALSE(IsNarrowFloat(DType::kF32));
  CHECK_FALSE(IsNarrowFloat(DType::kU16));
  CHECK((IsInteger(DType::kU64) && !IsSigned(DType::kU64)));
  CHECK((IsInteger(DType::kI16) && IsSigned(DType::kI16)));
  CHECK_FALSE(IsInteger(DType::kBool));
  CHECK(DTypeSize(DType::kBool) == 1);
  CHECK(DTypeSize(DType{99}) == 0);
  CHECK(DTypeName(DType::kUnspecified) == "unspecified");
  CHECK(OpName(Op{99}) == "invalid");
}

TEST_CASE("Collective: every part has somebody that gives it and somebody that gets it", "[base]") {
  for (const CollectiveRow& row : kCollectives) {
    const Collective collective = {.dtype = DType::kF32,
                                   .op = row.gives == Share::kWhole ? Op::kSum : Op::kCopy,
                                   .gives = row.gives,
                                   .gets = row.gets,
                                   .element_count = 3};
    INFO(row.name);
    CHECK(Problem(collective).empty());
    CHECK(collective.name() == row.name);
    for (uint32_t rank_count = 1; rank_count <= 4; ++rank_count) {
      const uint32_t root = rank_count - 1;
      for (uint32_t part = 0; part < collective.part_count(rank_count); ++part) {
        uint32_t givers = 0;
        uint32_t getters = 0;
        for (uint32_t rank = 0; rank < rank_count; ++rank) {
          givers += collective.Gives(part, rank, rank_count, root) ? 1 : 0;
          getters += collective.Gets(part, rank, rank_count, root) ? 1 : 0;
        }
        CHECK(givers == (collective.copies() ? 1 : rank_count));
        CHECK(getters == (collective.all_get_all() ? rank_count : 1));
      }
    }
  }
}

TEST_CASE("Collective: a rank gives as many parts as its collective says", "[base]") {
  for (const CollectiveRow& row : kCollectives) {
    INFO(row.name);
    const Collective collective = {.gives = row.gives, .gets = row.gets, .element_count = 3};
    CHECK(collective.from_root() == (row.name == "broadcast" || row.name == "scatter"));
    CHECK(collective.is_pairwise() == (row.name == "all_to_all"));
    for (uint32_t rank_count = 1; rank_count <= 4; ++rank_count) {
      const uint32_t root = rank_count - 1;
      CHECK(collective.CanCountParts(rank_count));
      for (uint32_t rank = 0; rank < rank_count; ++rank) {
        if (collective.from_root() && rank != root) continue;
        uint32_t given = 0;
        for (uint32_t part = 0; part < collective.part_count(rank_count); ++part) {
          given += collective.Gives(part, rank, rank_count, root) ? 1 : 0;
        }
        CHECK(collective.parts_given(rank_count) == given);
      }
    }
    // The number of parts has 32 bits.
    CHECK(collective.CanCountParts(0x10000) == !collective.is_pairwise());
  }
}

TEST_CASE("Collective: parts begin on cache lines, and a whole tensor has its own length",
          "[base]") {
  const Collective sum = Collective::Of(DType::kF32, Op::kSum, 5);
  CHECK(sum.bytes(4) == 20);
  CHECK(sum.part_count(4) == 1);
  CHECK(sum.part_at(16) == 0);
  const Collective gather = {.dtype = DType::kF32,
                             .op = Op::kCopy,
                             .gives = Share::kOwn,
                             .gets = Share::kWhole,
                             .element_count = 17};
  CHECK(gather.stride_bytes() == 128);
  CHECK(gather.bytes(4) == 512);
  CHECK(gather.part_at(127) == 0);
  CHECK(gather.part_at(128) == 1);
  CHECK(gather.offset_in_part(130) == 2);
  Collective exchange = gather;
  exchange.gives = Share::kRow;
  exchange.gets = Share::kColumn;
  CHECK(exchange.part_count(4) == 16);
  Collective empty = gather;
  empty.element_count = 0;
  CHECK(empty.bytes(4) == 256);
  CHECK(empty.part_at(192) == 3);
}

TEST_CASE("Collective: a combination that is no collective is refused with the reason", "[base]") {
  Collective wrong = Collective::Of(DType::kF32, Op::kSum, 5);
  wrong.gets = Share::kColumn;
  CHECK_THAT(Problem(wrong), Catch::Contains("no collective that gives 1 and gets 5"));
  wrong = Collective::Of(DType::kF32, Op::kCopy, 5);
  wrong.op = Op::kSum;
  CHECK_THAT(Problem(wrong), Catch::Contains("broadcast copies, and has no sum"));
  wrong = Collective::Of(DType::kI32, Op::kAverage, 5);
  CHECK_THAT(Problem(wrong), Catch::Contains("average is not defined for i32"));
  for (const auto& [dtype, op] : {std::pair{DType::kF64, Op::kSum}, {DType::kF32, Op::kMax}}) {
    wrong = Collective::Of(dtype, op, 5);
    for (const Encoding encoding : {Encoding::kInt8, Encoding::kFew}) {
      wrong.encoding = encoding;
      CHECK_THAT(Problem(wrong), Catch::Contains(std::string(EncodingName(encoding)) +
                                                 " rounds, and is for sums and averages of f32"));
    }
  }
  wrong = Collective::Of(DType::kF32, Op::kAverage, 5);
  wrong.encoding = Encoding::kBf16;
  CHECK(Problem(wrong).empty());
  wrong.encoding = Encoding::kFew;
  CHECK(Problem(wrong).empty());
  // One that a newer release may have.
  wrong.encoding = static_cast<Encoding>(kEncodings.size());
  CHECK_THAT(Problem(wrong),
             Catch::Contains("there is no encoding " + std::to_string(kEncodings.size())));
  for (const auto& [dtype, op] : {std::pair{DType::kI64, Op::kMax}, {DType::kBool, Op::kCopy}}) {
    Collective exact = Collective::Of(dtype, op, 5);
    exact.encoding = Encoding::kGaps;
    CHECK(Problem(exact).empty());
  }
  wrong = Collective::Of(DType{77}, Op::kSum, 5);
  CHECK_THAT(Problem(wrong), Catch::Contains("no dtype 77"));
}

TEST_CASE("RoundSignature: it says in words what a rank calls", "[base]") {
  const Collective sum = Collective::Of(DType::kBF16, Op::kMax, 1000);
  CHECK(DescribeSignature(SignatureOf(sum, 7)) == "bf16[7] max");
  CHECK(DescribeSignature(0).empty());
  CHECK(DescribeGiven(SignatureOf(sum, 7), 14) == "bf16[7] max, 14 bytes");
  CHECK(DescribeGiven(0, 14) == "14 bytes");
  CHECK(DescribeGiven(0, std::nullopt) == "what it does not name");
  const Collective gather = {.dtype = DType::kI64,
                             .op = Op::kCopy,
                             .gives = Share::kOwn,
                             .gets = Share::kWhole,
                             .element_count = 100};
  CHECK(DescribeSignature(SignatureOf(gather, 12)) == "i64 all_gather, rows of 12");
  CHECK(SignatureOf(gather, 12) != SignatureOf(gather, 13));
  CHECK(DescribeSignature(0xfe20'0000'8000'0006) == "shape [32, 6]");
  CHECK(DescribeSignature(0xfe00'0000'0000'0000) == "shape []");
  CHECK(DescribeSignature(0xfe10'0000'0000'0007) == "shape [7]");
  CHECK(DescribeSignature(0xff00'0000'0000'0a07) == "a shape with digest 00000000000a07");
  for (uint64_t top = 0; top < 256; ++top) {  // Another rank may send any text.
    CHECK_FALSE(DescribeSignature(top << 56 | ~uint64_t{0} >> 8).empty());
  }
  CHECK(DescribeGiven(0x6A6F696E6564, std::nullopt) == "nothing, since it has joined (hvd.join())");
  CHECK(DescribeGiven(kFitsAll, std::nullopt) == "zeros, since it has joined (hvd.join())");
}

TEST_CASE("RoundSignature: a rank that has joined agrees with whatever the others give", "[base]") {
  CHECK(Fit(7, 7));
  CHECK_FALSE(Fit(7, 0));
  CHECK(Fit(kFitsAll, 7));
  CHECK(Fit(0, kFitsAll));
}

TEST_CASE("Dealing: its text is read back, and any other text is refused", "[base]") {
  for (const char* text : {"striped", "naive", "djb2", "sdbm", "fingerprint:3", "weighted:101",
                           "weighted:4294967295"}) {
    CAPTURE(text);
    REQUIRE(ParseDealing(text));
    CHECK(DealingText(*ParseDealing(text)) == text);
    CHECK(IsValid(*ParseDealing(text)));
  }
  CHECK(ParseDealing("striped") == Dealing{});
  CHECK(DealingText(*ParseDealing("fingerprint")) == "fingerprint:1");
  CHECK(DealingText(*ParseDealing("weighted")) == "weighted:101");
  for (const char* bad :
       {"", "mixed", "djb", "djb2:1", "striped:0", "weighted:", "weighted:0", "weighted:-1",
        "weighted:4294967296", "fingerprint:1x", "fingerprint:+1"}) {
    CAPTURE(bad);
    CHECK_FALSE(ParseDealing(bad));
  }
  CHECK_FALSE(IsValid({.rule = DealingRule{0}}));
  CHECK_FALSE(IsValid({.rule = DealingRule{7}}));
  CHECK_FALSE(IsValid({.rule = DealingRule::kWeighted}));
  CHECK_FALSE(IsValid({.rule = DealingRule::kDjb2, .constant = 1}));
}

TEST_CASE("ReadAtMost: it reads pieces to their end, or up to the bound", "[base]") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const Descriptor reader(ends[0]);
  Descriptor writer(ends[1]);
  std::string text = "what was there before";
  REQUIRE(write(writer.get(), "gradient", 8) == 8);
  REQUIRE(ReadAtMost(reader.get(), 4, text));
  CHECK(text == "grad");
  writer.Reset();
  REQUIRE(ReadAtMost(reader.get(), 100, text));
  CHECK(text == "ient");
  REQUIRE(ReadAtMost(reader.get(), 100, text));
  CHECK(text.empty());
  CHECK_FALSE(ReadAtMost(-1, 100, text));
}

TEST_CASE("StrongId: ids are ordered, and the next one is one more", "[base]") {
  CHECK(Epoch{3} < Epoch{4});
  CHECK(Epoch{3}.Next() == Epoch{4});
}

TEST_CASE("ShownAddress: it leaves out what lets somebody in", "[base]") {
  CHECK(ShownAddress("fi:tcp://10.0.0.3:7001/0123456789abcdef,local:@x") ==
        "fi:tcp://10.0.0.3:7001,local");
  CHECK(ShownAddress("fi:verbs://[::1]:5/0123") == "fi:verbs://[::1]:5");
  CHECK(ShownAddress("local:/run/talweg/a.sock") == "local");
  CHECK(ShownAddress("a secret") == "a secret");
  CHECK(ShownAddress("") == "");
}

}  // namespace
}  // namespace talweg
